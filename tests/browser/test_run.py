"""Cells that train on a real cluster, in a real JupyterLab: what a person at the notebook does and sees."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, expect

from .conftest import ACTION_MS
from .jupyter import Lab, Notebook, open_notebook

START_MS = 120_000  # Spark, agents and TensorFlow, on a busy machine
STOP_SECONDS = 8.0
WORKERS = 2

SETUP = """
%load_ext tfos_magic
import os, time
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
spark = (SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false")
         .config("spark.ui.showConsoleProgress", "false").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
train = spark.range(0, 600, 1, 3).select(
    F.array(*[F.rand(i).cast("float") for i in range(4)]).alias("x"), (F.col("id") % 2).alias("y"))

def await_gate(name):
    "Wait, on every worker, until the test has opened this gate."
    deadline = time.monotonic() + 90
    while not Path({gates!r}, name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the test did not open the gate {{name!r}} within 90 s")
        time.sleep(0.02)
print("ready")
"""

TRAIN = """%%tfos_train --label y {options}
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(train, epochs={epochs}, callbacks=[{callback}])
"""

GATED = "keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: await_gate(f'epoch {epoch + 1}'))"

FAILING = """%%tfos_train --label y
import keras
print("about to fail")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="rely")])
model.compile("sgd", "mse")
model.fit(train)
"""


class Cells:
    """The cells of an open notebook, worked with mouse and keyboard."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook
        self.page = notebook.page

    def __getitem__(self, index: int) -> Locator:
        return self.page.locator(".jp-CodeCell").nth(index)

    def run(self, index: int) -> None:
        """Click into the cell and press Shift+Enter."""
        self[index].locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def finish(self, index: int, milliseconds: float = START_MS) -> None:
        """Wait until the cell has ended, by when it has a number."""
        expect(self[index].locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]"), timeout=milliseconds)

    def stop(self) -> None:
        """Press the stop button of the notebook's toolbar."""
        self.page.locator("[data-command='notebook:interrupt-kernel']").first.click()

    def card(self, index: int) -> Locator:
        return self[index].locator(".tfos-card")

    def panel(self, index: int) -> Locator:
        return self[index].locator(".tfos-panel")

    def error(self, index: int) -> Locator:
        """The traceback, or what stands in its place; JupyterLab gives it the type of text on stderr."""
        return self[index].locator("[data-mime-type='application/vnd.jupyter.stderr']").filter(has_text="Error")

    def screenshots(self, name: str, shown: Locator, artefacts: Path) -> None:
        """A picture of the page with ``shown`` in sight, in each theme."""
        for theme in ("Dark", "Light"):
            self.notebook.command("apputils:change-theme", {"theme": f"JupyterLab {theme}"})
            self.page.wait_for_selector(f"body[data-jp-theme-name='JupyterLab {theme}']", state="attached")
            self.page.wait_for_selector("#jupyterlab-splash", state="detached")
            shown.scroll_into_view_if_needed()
            self.page.screenshot(path=artefacts / f"run-{name}-{theme}.png")


def write_notebook(lab: Lab, name: str, gates: Path, *cells: str) -> Path:
    return lab.write(name, SETUP.format(gates=str(gates)), *cells)


def complaints_of_ours(notebook: Notebook, tensorboard: str = "") -> list[str]:
    """What the console said was wrong, but for what it says of the frame with TensorBoard, which has a port of its own.

    TensorBoard asks for its fonts where a proxy does not look for them, and a page opened again asks for a TensorBoard
    that has ended.
    """
    foreign = re.compile(rf"/font-roboto/|/proxy/{tensorboard}/|:{tensorboard}/" if tensorboard else r"(?!)")
    return [complaint for complaint in notebook.complaints if not foreign.search(complaint)]


@pytest.mark.soak
def test_a_run_shows_a_live_panel_that_becomes_a_card_which_needs_no_kernel(
    context: BrowserContext, lab: Lab, tmp_path: Path, artefacts: Path
) -> None:
    train = TRAIN.format(options=f"-o history --tensorboard --log-dir {tmp_path / 'runs'}", epochs=6, callback=GATED)
    path = write_notebook(lab, "run", tmp_path, train, "%tfos tensorboard --height 420")
    cells = Cells(open_notebook(context, lab, path))
    cells.run(0)
    cells.run(1)

    panel = cells.panel(1)
    expect(panel.locator(".tfos-headline")).to_have_text(f"Training on {WORKERS} workers", timeout=START_MS)
    expect(panel.locator(".tfos-feeds li")).to_contain_text("600 rows")
    expect(panel.locator(".tfos-position")).to_contain_text("epoch 1 of 6", timeout=START_MS)  # after its first step
    for epoch in (1, 2, 3):
        (tmp_path / f"epoch {epoch}").touch()
    expect(panel.locator(".tfos-position")).to_contain_text("epoch 4 of 6")
    expect(panel.locator(".tfos-metric", has_text="mae")).to_contain_text(re.compile(r"\d"))
    panel.get_by_role("tab", name="Workers").click()
    expect(panel.locator(".tfos-workers tbody tr")).to_have_count(WORKERS)
    panel.get_by_role("tab", name="Curves").click()
    expect(panel.locator(".tfos-line").first).to_be_attached()
    cells.screenshots("panel", panel, artefacts)
    board = panel.locator("iframe[title=TensorBoard]")
    assert board.get_attribute("src") is None
    panel.get_by_role("tab", name="TensorBoard").click()
    expect(board).to_have_attribute("src", re.compile(rf"^{re.escape(lab.url)}/proxy/\d+/[\w-]+/$"))
    expect(board.content_frame.get_by_text("epoch_loss").first).to_be_visible(timeout=START_MS)
    expect(panel.get_by_role("link", name="Open TensorBoard")).to_have_attribute(
        "href", re.compile(r"/proxy/\d+/[\w-]+/$")
    )
    width = "element => element.clientWidth / element.parentElement.clientWidth"
    assert panel.evaluate(width) > 0.95
    assert cells[1].locator("iframe").count() == 1
    cells.screenshots("tab", panel, artefacts)
    for epoch in (4, 5, 6):
        (tmp_path / f"epoch {epoch}").touch()

    cells.finish(1)
    card = cells.card(1)
    expect(card).to_contain_text(f"Trained on {WORKERS} workers")
    expect(panel).to_have_count(0)
    cells.screenshots("card", card, artefacts)
    shown = card.inner_text()

    cells.run(2)
    frame = cells[2].locator("iframe[title=TensorBoard]")
    inside = frame.content_frame
    expect(inside.get_by_text("epoch_loss").first).to_be_visible(timeout=START_MS)
    expect(inside.get_by_text("epoch_mae").first).to_be_visible()
    cells.screenshots("tensorboard", frame, artefacts)

    port = (cells[2].locator("[data-proxied]").get_attribute("data-proxied") or "").split("/")[1]
    assert port is not None
    cells.notebook.save()
    cells.notebook.shut_kernel_down()
    cells.notebook.open()
    card.scroll_into_view_if_needed()
    expect(card).to_be_visible()
    assert card.inner_text() == shown
    assert complaints_of_ours(cells.notebook, port) == []


@pytest.fixture(scope="module")
def cells(browser: Browser, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    """A notebook whose cells fail, never end, and train; its cluster starts with the first that is run."""
    gates = tmp_path_factory.mktemp("gates")
    endless = TRAIN.format(options="", epochs=100_000, callback="")
    short = TRAIN.format(options="-o history", epochs=2, callback="")
    detached = TRAIN.format(options="--detach", epochs=100_000, callback="")
    path = write_notebook(lab, "trouble", gates, FAILING, endless, short, detached, "%tfos status")
    with browser.new_context(viewport={"width": 1100, "height": 1400}) as context:
        context.set_default_timeout(ACTION_MS)
        made = Cells(open_notebook(context, lab, path))
        made.run(0)
        expect(made[0]).to_contain_text("ready", timeout=START_MS)
        yield made
        made.notebook.shut_kernel_down()


@pytest.mark.soak
def test_a_failing_cell_shows_the_workers_error_once_and_none_of_our_frames(cells: Cells, artefacts: Path) -> None:
    cells.run(1)
    cells.finish(1)
    expect(cells.card(1)).to_contain_text("Training failed")
    error = cells.error(1)
    expect(error).to_have_count(1)
    text = error.inner_text()
    assert text.startswith("WorkerError: ValueError on worker 0 on ")
    assert text.count("WorkerError") == 1
    assert text.count("Could not interpret activation function identifier: rely") == 2  # said, and in the traceback
    assert re.search(r"[>→].*activation=\"rely\"", text)
    assert "about to fail" in text
    assert "tfos_magic/" not in text
    cells.screenshots("error", error, artefacts)


@pytest.mark.soak
def test_the_stop_button_ends_a_run_at_once_and_the_next_cell_trains(cells: Cells, artefacts: Path) -> None:
    cells.run(2)
    expect(cells.panel(2).locator(".tfos-position")).to_contain_text(
        re.compile(r"epoch ([2-9]|\d\d)"), timeout=START_MS
    )
    pressed = time.monotonic()
    cells.stop()
    cells.finish(2)
    assert time.monotonic() - pressed < STOP_SECONDS
    expect(cells.card(2)).to_contain_text("Stopped on 2 workers")
    cells.screenshots("stopped", cells.card(2), artefacts)

    cells.run(3)
    expect(cells.card(3)).to_contain_text("Trained on 2 workers", timeout=START_MS)
    cells.finish(3)
    assert cells.error(3).count() == 0
    assert complaints_of_ours(cells.notebook) == []


@pytest.mark.soak
def test_a_detached_run_leaves_the_notebook_free_and_its_panel_stops_it_from_another_cell(
    cells: Cells, artefacts: Path
) -> None:
    cells.run(4)
    cells.finish(4)
    expect(cells.panel(4).locator(".tfos-position")).to_contain_text(
        re.compile(r"epoch ([2-9]|\d\d)"), timeout=START_MS
    )
    cells.run(5)
    cells.finish(5)
    again = cells.panel(5)
    expect(again.locator(".tfos-headline")).to_have_text("Training on 2 workers")
    before = again.locator(".tfos-position").inner_text()
    expect(again.locator(".tfos-position")).not_to_have_text(before)
    cells.screenshots("detached", again, artefacts)
    again.get_by_role("button", name="Stop").click()
    expect(again.locator(".tfos-headline")).to_have_text("Stopped on 2 workers", timeout=STOP_SECONDS * 1000)
    expect(cells.card(4)).to_contain_text("Stopped on 2 workers")
    assert complaints_of_ours(cells.notebook) == []


@pytest.mark.soak
def test_a_kernel_that_is_shut_down_is_no_failure_of_the_run(context: BrowserContext, lab: Lab, tmp_path: Path) -> None:
    train = TRAIN.format(options="-o history", epochs=5000, callback="")
    notebook = open_notebook(context, lab, lab.write("shut-down", SETUP.format(gates=str(tmp_path)), train))
    notebook.start_run()
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-position")).to_contain_text("of 5,000", timeout=START_MS)
    notebook.shut_kernel_down()
    expect(panel).to_have_attribute("data-phase", "gone")
    notebook.page.wait_for_timeout(3_000)  # in which Spark's end is no news
    expect(panel.locator(".tfos-headline")).to_have_text("Training on 2 workers, until the kernel went")
    expect(notebook.output(".tfos-card[data-phase=failed]")).to_have_count(0)
