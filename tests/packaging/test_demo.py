"""The script behind ``make demo``, with a real kernel and small notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

RUN = """
%load_ext tfos_magic
from types import SimpleNamespace
from tfos_magic.cluster.runs.state import FeedState, RunState
from tfos_magic.cluster.runs.worker_state import WorkerState

runtime = get_ipython().magics_manager.registry["TFOSMagics"].runtime
runtime.last_run = SimpleNamespace(
    state=RunState(
        run_id="1",
        name="run 1",
        strategy="sync",
        workers=[WorkerState(0, "host-a", 11, rows=900), WorkerState(1, "host-b", 22, rows=898)],
        history=[{"loss": 0.5, "accuracy": 0.9}, {"loss": 0.25, "accuracy": 0.975}],
        feeds={
            "train": FeedState("train", rows=1798, seconds=0.5, done=True),
            "again": FeedState("again", rows=1798, done=True, reused=True),
        },
        started=10.0,
        ended=22.5,
    )
)
"""
SAID = """
Worker 0: host host-a, pid 11, trained on 900 rows
Worker 1: host host-b, pid 22, trained on 898 rows
Fed train: 1,798 rows in 0.50 s, 3,596 rows/s
Epoch 1: loss 0.5000, accuracy 0.9000
Epoch 2: loss 0.2500, accuracy 0.9750
The training cell took 12.5 s, start and feed included
"""


@pytest.mark.soak
def test_a_notebook_that_runs_is_saved_with_its_outputs_and_nothing_else(project: Path, tmp_path: Path) -> None:
    done = _demo(project, tmp_path, "print(6 * 7)", "summary = 'mine'\nsummary")
    assert done.returncode == 0, done.stdout + done.stderr
    cells = nbformat.read(tmp_path / "executed" / "small.ipynb", as_version=4).cells
    assert [cell.execution_count for cell in cells] == [1, 2]
    assert cells[0].outputs[0].text == "42\n"
    assert cells[1].outputs[0].data["text/plain"] == "'mine'"


def test_a_failing_cell_fails_the_demo_and_its_error_is_printed(project: Path, tmp_path: Path) -> None:
    done = _demo(project, tmp_path, "1 / 0", "print('never')")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stdout
    assert "1 / 0" in done.stdout
    cells = nbformat.read(tmp_path / "executed" / "small.ipynb", as_version=4).cells
    assert cells[0].outputs[0].ename == "ZeroDivisionError"
    assert not cells[1].outputs


@pytest.mark.soak
def test_the_demo_says_what_the_run_did_even_when_a_later_cell_forgets_it(project: Path, tmp_path: Path) -> None:
    # A stand-in for the run: training one is the quickstart's own test.
    done = _demo(project, tmp_path, RUN, "runtime.last_run = None")
    assert SAID in done.stdout, done.stdout + done.stderr


def test_the_notebooks_own_names_survive_the_questions(project: Path, tmp_path: Path) -> None:
    done = _demo(project, tmp_path, "summary = 1", "assert summary == 1")
    assert done.returncode == 0, done.stdout


def _demo(project: Path, folder: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    path = folder / "small.ipynb"
    nbformat.write(notebook, path)
    command = [sys.executable, str(project / "tools" / "demo.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
