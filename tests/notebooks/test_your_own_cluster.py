"""A cluster of one's own: the doctor names each of four failures, and finds nothing once it is mended."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed, text_of

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("19_your_own_cluster")


def said_by(executed: Executed, magic: str) -> list[str]:
    """What each cell shows that has a line with the magic, in their order, as text without colours."""
    cells = [cell for cell in executed.notebook.cells if re.search(rf"^{magic}", cell.source, re.MULTILINE)]
    return [re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(map(text_of, cell.outputs))) for cell in cells]


def crosses(text: str) -> list[str]:
    """The lines of the doctor that need a fix, by what they begin with."""
    return [line.split("  ")[0].strip() for line in re.findall(r"^✗ (.+)$", text, re.MULTILINE)]


def test_a_master_and_a_worker_run_until_they_are_stopped(executed: Executed) -> None:
    up = executed.running_after("import atexit")
    for kind in ("master.Master", "worker.Worker"):
        assert any(f"org.apache.spark.deploy.{kind}" in command for command in up)
        assert re.search(rf"{kind}: process \d+", executed.text("import atexit"))
    assert "2 of 2 daemons have ended" in executed.text("import shutil")
    assert "Nothing was left behind" in executed.text("import shutil")
    still = " ".join(executed.running_after("import shutil"))
    assert not re.search(r"spark\.deploy\.(master|worker)", still)
    assert not (executed.folder / "own_cluster").exists()


def test_the_doctor_names_each_failure_and_is_content_once_it_is_mended(executed: Executed) -> None:
    cores, mended, address, found_out, busy, free, python, own = said_by(executed, "%tfos doctor")
    assert [crosses(each) for each in (cores, address, busy)] == [["slots"], ["control port"], ["slots"]]
    assert crosses(python) == ["executor slot 0", "executor slot 1"]
    for content in (mended, found_out, free, own):
        assert crosses(content) == []
        assert "All is well." in content
    assert "2 of 2 free; 2 workers and feeding need 3" in cores
    assert "cannot listen on 192.0.2.1" in address
    assert "0 of 0 free" in busy
    assert "tensorflow and keras cannot be imported by" in python
    assert "own_cluster/other/bin/python" in python


def test_a_start_says_it_as_well(executed: Executed) -> None:
    cores, address, busy, python = said_by(executed, "%tfos start")
    assert "2 of 3 slots free (2 in all" in cores
    assert "cannot listen on 192.0.2.1" in address
    assert "Spark has given this application no executor. Another application may hold the cores" in busy
    assert "tensorflow and keras cannot be imported by" in python


def test_the_other_application_holds_all_cores(executed: Executed) -> None:
    assert "it has 4 cores" in executed.text("COLLEAGUE")


def test_it_trains_on_the_cluster(executed: Executed) -> None:
    losses = re.findall(r"^epoch \d of 3 · loss (\S+)", executed.text("%%tfos_train"), re.MULTILINE)
    assert len(losses) == 3
    assert float(losses[-1]) < float(losses[0])


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
