"""Views run by nbclient in a real kernel: what a notebook keeps when nobody looks on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.card import card_bundle

from .simulated import new_state, run_through

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
RUN = """
import sys; sys.path.insert(0, {folder!r})
from simulated import new_state, run_through
from tfos_magic.notebook.views.choice import choose_view
view = choose_view({view!r})
moments = run_through(new_state())
view.open(next(moments))
for moment in moments:
    if moment.epoch == 1 and moment.step == 5 and moment.stage == "train":
        view.output("half way\\n", "stdout")
    (view.close if moment.phase.ended else view.update)(moment)
"""


def outputs(view: str) -> list[Any]:
    """Run the cell as nbclient does, and give what the notebook holds after it."""
    cell = nbformat.v4.new_code_cell(RUN.format(folder=str(HERE), view=view))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    return list(notebook.cells[0].outputs)


def test_nbclient_gets_lines_of_text_and_the_card_in_the_end() -> None:
    *texts, card = outputs("auto")
    assert {text.output_type for text in texts} == {"stream"}
    lines = "".join(text.text for text in texts).splitlines()
    assert lines[0] == "Starting on 2 workers"
    assert lines.index("half way") < next(i for i, line in enumerate(lines) if line.startswith("epoch 2 of 3"))
    assert set(card.data) == {"text/html", "text/plain"}
    assert card.data["text/plain"].startswith("Trained on 2 workers")


def test_a_workers_error_fails_the_notebook_run_and_is_kept_as_one_message_without_our_stack() -> None:
    source = "from tfos_magic.errors import WorkerError\nraise WorkerError('shapes', rank=1, kind='ValueError')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    with pytest.raises(CellExecutionError, match="ValueError on worker 1: shapes"):
        NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (error,) = notebook.cells[0].outputs
    assert error.traceback == ["WorkerError: ValueError on worker 1: shapes"]


@pytest.mark.parametrize("view", ["html", "widget"])
def test_a_notebook_run_without_a_page_keeps_the_final_card(view: str) -> None:
    card, text = outputs(view)
    assert text.text == "half way\n"
    assert set(card.data) == {"text/html", "text/plain"}
    assert 'data-phase="done"' in card.data["text/html"]


def test_the_card_has_its_curves_where_the_notebook_becomes_a_page() -> None:
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", card_bundle(ended()))])
    page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    card = page[page.index('class="tfos-card"') :]
    assert card.count('role="img"') == 3
    assert "val_loss" in card


def ended() -> RunState:
    *_, state = run_through(new_state())
    return state


TOLD = """
import sys; sys.path.insert(0, {folder!r})
from contextvars import copy_context
from ipywidgets import VBox
from simulated import ToldRun
from tfos_magic.widgets import Curves, Progress
run, here = ToldRun().go_on(25), copy_context()
"""


def test_a_notebook_run_without_a_page_ends_with_the_last_pictures_of_parts() -> None:
    cells = [
        TOLD.format(folder=str(HERE)),
        "Progress(run)",
        "VBox([Progress(run), Curves(run)])",
        "here.run(run.go_on)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (alone,), (beside, _) = (notebook.cells[place].outputs for place in (1, 2))
    assert set(alone.data) == {"text/html", "text/plain"}
    for picture in (alone, beside):
        assert "Trained on 2 workers" in picture.data["text/html"]
        assert "Drawn at" not in picture.data["text/html"]
    assert "<svg" in beside.data["text/html"]


def test_a_terminal_with_parts_exits_quietly() -> None:
    script = "from tfos_magic.widgets import Progress\nProgress()\nexit()\n"
    command = [sys.executable, "-m", "IPython", "--no-banner", "--simple-prompt", "--quick"]
    ended = subprocess.run(command, input=script, text=True, capture_output=True, timeout=60, check=True)
    assert "No run yet." in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
