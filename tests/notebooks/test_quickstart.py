"""The quickstart runs from top to bottom as a newcomer runs it, and shows what its text promises."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

CELL_SECONDS = 240
GONE_SECONDS = 10.0

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Executed:
    """The notebook after its run: outputs, and the commands of what ran below its kernel.

    ``training`` are those at the end of the training cell, ``stopped`` those after the last cell, and ``left`` those
    that outlived the kernel by ten seconds.
    """

    notebook: nbformat.NotebookNode
    folder: Path
    training: list[str]
    stopped: list[str]
    left: list[str]

    def text(self, beginning: str) -> str:
        """What the cell whose source begins with ``beginning`` shows, as text."""
        cell = next(cell for cell in self.notebook.cells if cell.source.startswith(beginning))
        parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        return "\n".join(parts)


@pytest.fixture(scope="module")
def source(project: Path) -> nbformat.NotebookNode:
    return nbformat.read(project / "notebooks" / "00_quickstart.ipynb", as_version=4)


@pytest.fixture(scope="module")
def executed(project: Path, tmp_path_factory: pytest.TempPathFactory, artefacts: Path) -> Executed:
    """The notebook, run once in a folder of its own, where its data and logs stay."""
    folder = tmp_path_factory.mktemp("quickstart")
    notebook = nbformat.read(project / "notebooks" / "00_quickstart.ipynb", as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    training: list[str] = []
    # The suite draws into files; the notebook shall draw as it does for a newcomer.
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    try:
        with client.setup_kernel(env=environment):
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
                if cell.source.startswith("%%tfos_train"):
                    training = [command(process) for process in below(client)]
            stopped = below(client)
            commands = {process.pid: command(process) for process in stopped}
        _, alive = psutil.wait_procs(stopped, timeout=GONE_SECONDS)
    finally:
        nbformat.write(notebook, artefacts / "00_quickstart.ipynb")
    return Executed(notebook, folder, training, list(commands.values()), [commands[process.pid] for process in alive])


def below(client: NotebookClient) -> list[psutil.Process]:
    """Everything that runs below the notebook's kernel."""
    return psutil.Process(client.km.provisioner.pid).children(recursive=True)


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_it_is_stored_without_outputs_and_numbers(source: nbformat.NotebookNode) -> None:
    nbformat.validate(source)
    for cell in source.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_model_that_came_back_reads_more_than_95_of_100_unseen_digits(executed: Executed) -> None:
    accuracy = re.search(r"Test accuracy: (\d\.\d+)", executed.text("import numpy"))
    assert accuracy is not None
    assert float(accuracy[1]) > 0.95


def test_two_trainers_trained(executed: Executed) -> None:
    assert sum("tfos_magic.node.trainer" in line for line in executed.training) == 2
    status = executed.text("%tfos status")
    assert re.findall(r"worker (\d)  \S+  pid \d+  cpu  ready", status) == ["0", "1"]


def test_the_workers_were_fed_all_rows_of_the_split_and_no_other(executed: Executed) -> None:
    counted = re.search(
        r"(\d+) rows to train on, (\d+) to validate, (\d+) to test", executed.text("images = spark.read")
    )
    assert counted is not None
    fed = dict(re.findall(r"^(\w+): ([\d,]+) rows", executed.text("%%tfos_train"), re.MULTILINE))
    assert {name: int(rows.replace(",", "")) for name, rows in fed.items()} == {
        "train": int(counted[1]),
        "validation": int(counted[2]),
    }
    assert sum(map(int, counted.groups())) == 1797


def test_every_epoch_is_told_with_its_validation(executed: Executed) -> None:
    told = re.findall(r"^epoch (\d+) of 15 · accuracy .* loss .* val_accuracy ", executed.text("%%tfos_train"), re.M)
    assert [int(epoch) for epoch in told] == list(range(1, 16))
    assert "Trained on 2 workers" in executed.text("%%tfos_train")


def test_the_curve_is_drawn_and_tensorboard_shown(executed: Executed) -> None:
    curve = next(cell for cell in executed.notebook.cells if cell.source.startswith("import matplotlib"))
    assert any("image/png" in output.get("data", {}) for output in curve.outputs)
    assert re.search(r"http://127\.0\.0\.1:\d+/", executed.text("%tfos tensorboard"))
    assert list((executed.folder / "runs").glob("*/*/events.out.tfevents.*"))


def test_stop_ends_the_workers_and_tensorboard_and_the_kernel_takes_the_rest(executed: Executed) -> None:
    assert not [line for line in executed.stopped if "tfos_magic.node.trainer" in line or "tensorboard" in line]
    assert executed.left == []
