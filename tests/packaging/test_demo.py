"""The script behind ``make demo``, with a real kernel and small notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat

SPARK = """
class Conf:
    def get(self, key, default=None):
        return {"spark.master": "local[2]"}[key]

class Session:
    conf = Conf()

spark = Session()
"""


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


def test_the_demo_keeps_facts_that_the_last_cell_takes_away(project: Path, tmp_path: Path) -> None:
    # A stand-in for the session: what is under test is that facts are read as the notebook goes along.
    done = _demo(project, tmp_path, SPARK, "del spark")
    assert "Spark master: local[2]" in done.stdout, done.stdout + done.stderr


def test_the_notebooks_own_names_survive_the_questions(project: Path, tmp_path: Path) -> None:
    done = _demo(project, tmp_path, "summary = 1", "assert summary == 1")
    assert done.returncode == 0, done.stdout


def _demo(project: Path, folder: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    path = folder / "small.ipynb"
    nbformat.write(notebook, path)
    command = [sys.executable, str(project / "tools" / "demo.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
