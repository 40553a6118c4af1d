"""What all tutorials have in common: how they are stored, how they open and end, and where they lead."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
OUTPUTS = NOTEBOOKS.parent / "docs" / "tutorials" / "outputs"
TUTORIALS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.fixture(params=TUTORIALS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def notebook(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def test_it_is_stored_without_outputs_and_numbers(notebook: nbformat.NotebookNode) -> None:
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_it_opens_with_what_you_will_learn_and_how_long_it_takes(notebook: nbformat.NotebookNode) -> None:
    opening = notebook.cells[0]
    assert opening.cell_type == "markdown"
    assert re.match(r"# \S", opening.source)
    assert re.search(r"\byou will\b", opening.source, re.IGNORECASE)
    assert re.search(r"\b(minutes?|seconds)\b", opening.source)
    assert len(re.findall(r"^(?:\d\.|-) \S", opening.source, re.MULTILINE)) >= 2


def test_it_ends_with_what_to_try_and_where_to_go(notebook: nbformat.NotebookNode) -> None:
    ending = notebook.cells[-1]
    assert ending.cell_type == "markdown"
    assert "## What to try next\n" in ending.source
    assert re.search(r"\]\(\d\d_\w+\.ipynb\)", ending.source)


def test_it_says_what_one_should_see_and_asks_before_it_shows(notebook: nbformat.NotebookNode) -> None:
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert re.search(r"\byou should see\b", prose, re.IGNORECASE)
    asked = len(re.findall(r"^\s*<details><summary>What do you expect\?</summary>\n\n", prose, re.MULTILINE))
    assert asked == len(re.findall(r"^\s*</details>$", prose, re.MULTILINE)) >= 1


def test_the_path_through_all_of_them_is_that_of_the_readme() -> None:
    path = re.findall(
        r"^\| \[(\d\d_\w+)\]\(notebooks/", (NOTEBOOKS.parent / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(path) == [each.stem for each in TUTORIALS]
    for name, after in zip(path, [*path[1:], ""], strict=True):
        ending = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells[-1].source
        told = "the next notebook, .*" + re.escape(f"({after}.ipynb).") if after else r"another notebook\."
        assert re.search(f"^Shut this kernel down before you open {told}$", ending, re.MULTILINE), name


def test_its_cluster_is_stopped_where_one_is_started(notebook: nbformat.NotebookNode) -> None:
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    if re.search(r"^%(tfos start|%tfos_train|%tfos_run)", code, re.MULTILINE):
        assert re.search(r"^%tfos stop", code, re.MULTILINE)


def test_its_links_lead_somewhere(path: Path, notebook: nbformat.NotebookNode) -> None:
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]
    assert [link for link in links if not (path.parent / link.partition("#")[0]).exists()] == []


def test_its_outputs_are_kept_and_of_its_own_cells(path: Path, notebook: nbformat.NotebookNode) -> None:
    kept = nbformat.read(OUTPUTS / path.name, as_version=4)
    assert [cell.source for cell in kept.cells] == [cell.source for cell in notebook.cells], (
        f"make outputs ONLY={path.stem}"
    )
    assert any(cell.get("outputs") for cell in kept.cells)
    shown = nbformat.writes(kept)
    assert re.findall(r"/(?:home|root|work)/[\w.-]+|token=\w+", shown) == []


def test_there_is_a_test_that_runs_it(path: Path) -> None:
    tests = [file.read_text("utf-8") for file in Path(__file__).parent.glob("test_*.py")]
    assert any(f'run_notebook("{path.stem}")' in test for test in tests)
