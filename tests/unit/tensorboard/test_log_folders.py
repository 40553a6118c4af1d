"""Where runs are shown side by side, and that nothing stays of a folder that nobody asked for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tfos_magic.errors import UsageError
from tfos_magic.tensorboard import server_process
from tfos_magic.tensorboard.log_folders import PrivateLogs, run_folder

pytestmark = pytest.mark.slow

EXIT_SECONDS = 10.0


def test_a_runs_folder_bears_its_name(tmp_path: Path) -> None:
    assert re.fullmatch(rf"{tmp_path}/\d{{8}}-\d{{6}}-run-7", run_folder(tmp_path, "run 7"))
    assert Path(run_folder(tmp_path, "a/b")).parent == tmp_path


def test_private_folders_lie_side_by_side_and_go_with_their_owner() -> None:
    logs = PrivateLogs()
    first, second = Path(logs.folder("run 1")), Path(logs.folder("run 2"))
    assert first.parent == second.parent
    first.mkdir()
    (first / "file").write_text("x")
    logs.close()
    assert not first.parent.exists()
    logs.close()


def test_without_a_folder_no_process_is_started() -> None:
    before = psutil.Process().children()
    PrivateLogs().close()
    assert psutil.Process().children() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_private_folders_go_with_a_process_that_is_killed_with_its_group(number: signal.Signals) -> None:
    code = (
        "from tfos_magic.tensorboard.log_folders import PrivateLogs; import pathlib, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background\n"
        "logs = PrivateLogs(); folder = pathlib.Path(logs.folder('run 1')); folder.mkdir()\n"
        "(folder / 'file').write_text('x'); print(folder, flush=True); threading.Event().wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0
    ) as owner:
        assert owner.stdout is not None
        base = Path(owner.stdout.readline().strip()).parent
        assert base.is_dir()
        children = psutil.Process(owner.pid).children()
        os.killpg(owner.pid, number)
    _, alive = psutil.wait_procs(children, timeout=EXIT_SECONDS)
    assert children
    assert not alive
    assert not base.exists()


def test_a_folder_that_is_not_on_this_machine_is_refused_and_a_url_of_one_that_is_taken(tmp_path: Path) -> None:
    assert Path(run_folder(f"file://{tmp_path}", "run")).parent == tmp_path
    with pytest.raises(UsageError, match="'s3://bucket/logs' is not on this machine"):
        run_folder("s3://bucket/logs", "run")
    for url in (f"file:{tmp_path}", f"file://{tmp_path}", str(tmp_path)):
        assert server_process._normal(url) == str(tmp_path)
    assert server_process._normal("gs://bucket/logs") == "gs://bucket/logs"
