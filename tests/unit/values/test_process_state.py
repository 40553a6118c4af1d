"""A cell finds the notebook's environment and loggers, and what it sets of the environment comes back."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfos_magic.transport.messages import CellLeft, NotebookState
from tfos_magic.values import process_state


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before, root = dict(os.environ), (logging.root.level, list(logging.root.handlers))
    yield
    process_state.set_environment({name: before.get(name) for name in os.environ.keys() | before.keys()})
    logging.root.setLevel(root[0])
    logging.root.handlers = root[1]


def _taken() -> NotebookState:
    state = NotebookState(environment=process_state.environment_set(), logging=process_state.logging_set())
    logging.root.handlers, logging.root.level = [], logging.WARNING
    return state


def test_variables_that_were_set_are_told_but_not_where_this_machine_has_things(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_state, "_begun", lambda: {"GONE": "1", "KEPT": "2", "PATH": "/bin"})
    monkeypatch.setattr(os, "environ", {"KEPT": "2", "RATE": "0.05", "PATH": "/else", "SPARK_X": "1", "TMPDIR": "/t"})
    assert process_state.environment_set() == {"GONE": None, "RATE": "0.05"}


def test_a_cell_has_them_for_itself_and_tells_what_it_has_set() -> None:
    os.environ["GONE"] = os.environ["KEPT"] = "1"
    with process_state.as_in_notebook(NotebookState(environment={"RATE": "0.05", "GONE": None}), files=False) as left:
        assert (os.environ["RATE"], "GONE" in os.environ) == ("0.05", False)
        os.environ["SEEN"] = "yes"
        del os.environ["KEPT"]
        assert left({"settings": {}}, "").environment == {"SEEN": "yes", "KEPT": None}
        assert left({}, "/else") == CellLeft(), "a cell that has not begun has left nothing"
    assert (os.environ["GONE"], os.environ["KEPT"], "RATE" in os.environ, "SEEN" in os.environ) == (
        "1",
        "1",
        False,
        False,
    )


def test_loggers_print_in_a_cell_as_they_do_in_the_notebook(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="{levelname}|{message}", style="{", stream=sys.stdout, force=True)
    logging.root.addHandler(logging.FileHandler(tmp_path / "log"))
    logging.getLogger("of my own").setLevel(logging.DEBUG)
    state = _taken()
    for files in (False, True):
        with process_state.as_in_notebook(state, files=files):
            logging.getLogger("of my own").debug("shown")
            logging.getLogger("another").debug("not shown")
            logging.info("epoch 1")
        logging.info("not shown either")
    assert capsys.readouterr().out == "DEBUG|shown\nINFO|epoch 1\n" * 2
    assert (tmp_path / "log").read_text() == "shown\nepoch 1\n"


@pytest.mark.filterwarnings("default")
def test_warnings_are_shown_in_a_cell_as_in_the_notebook_and_the_other_way_round() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "of the notebook", UserWarning)
        warnings.filterwarnings("always", module="numpy[.]linalg")
        warnings.filterwarnings("error", "of no concern to a cell")
        begun = process_state.warnings_set()
        notebook = process_state.of_notebook({})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the trainer itself
        own = list(warnings.filters)
        with process_state.as_in_notebook(notebook, files=False) as left, warnings.catch_warnings(record=True) as seen:
            warnings.warn("of the notebook alone", stacklevel=1)
            warnings.warn("another", stacklevel=1)
            assert [str(each.message) for each in seen] == ["another"]
            warnings.filterwarnings("ignore", "another")
            told = left({"settings": {}}, "").warnings
        assert warnings.filters == own
    assert told == [["ignore", "another", ["builtins", "Warning"], "", 0], *begun]
    with warnings.catch_warnings():
        process_state.go_on(CellLeft(warnings=told), meanwhile=False)
        assert process_state.warnings_set()[: len(told)] == told
        warnings.warn("another", stacklevel=1)


def test_filters_that_make_errors_stay_behind_what_a_cell_puts_first_and_before_what_they_were_before() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "of no interest")
        warnings.filterwarnings("error", "of interest")
        told = [["default", "of the cell", ["builtins", "Warning"], "", 0], *process_state.warnings_set()]
        process_state.go_on(CellLeft(warnings=told), meanwhile=False)
        actions = [each[0] for each in warnings.filters[:3]]
    assert actions == ["default", "error", "ignore"]


def test_filters_of_categories_that_a_process_does_not_have_are_left_out() -> None:
    unknown = ["ignore", "", ["no_such_package", "SomeWarning"], "", 0]
    known = ["ignore", "", ["builtins", "UserWarning"], "", 0]
    with process_state.as_in_notebook(NotebookState(warnings=[unknown, known]), files=False):
        assert process_state.warnings_set()[0] == known


def test_the_notebook_goes_to_the_directory_that_a_cell_went_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())
    process_state.go_on(CellLeft(directory=str(tmp_path)), meanwhile=True)
    assert Path.cwd() != tmp_path
    process_state.go_on(CellLeft(directory=str(tmp_path)), meanwhile=False)
    assert Path.cwd() == tmp_path
    process_state.go_on(CellLeft(directory=str(tmp_path / "gone")), meanwhile=False)
    assert Path.cwd() == tmp_path


def test_what_a_cell_adds_to_a_log_is_not_written_over(tmp_path: Path) -> None:
    logging.basicConfig(filename=tmp_path / "log", filemode="w", level=logging.INFO, format="%(message)s", force=True)
    logging.info("notebook")
    with open(tmp_path / "log", "a") as added:
        added.write("cell\n")
    process_state.go_on(CellLeft(), meanwhile=True)
    logging.info("notebook again")
    assert (tmp_path / "log").read_text() == "notebook\ncell\nnotebook again\n"
