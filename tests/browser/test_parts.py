"""Dashboards of parts in JupyterLab, over told runs in a real kernel."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import BrowserContext, expect

from tests.soak import every

from .jupyter import Lab, Notebook, open_notebook

TOLD = """
import sys; sys.path.insert(0, {folder!r})
from ipywidgets import GridspecLayout, HBox, Output, Tab, VBox, jslink
from simulated import ToldFeeds, ToldRun, finish
from tfos_magic.widgets import *
run, other = ToldRun(lr=0.1).go_on(25), ToldRun(number=2, lr=0.01).go_on()
"""
DASHBOARD = """
progress, curves, workers = Progress(run), Curves(run), WorkerTable(run)
VBox([
    HBox([progress, StopButton(run)]),
    HBox([curves, Curves(run, metrics=["loss"], smooth=0.6, log_y=True)]),
    HBox([workers, LogView(run)]),
    FeedTable(run, cluster=ToldFeeds()),
    Compare([run, other]),
])
"""
EMPTY = """
VBox([
    HBox([Progress(), StopButton(), Curves(), WorkerTable()]),
    HBox([LogView(), FeedTable(), Compare()]),
    ClusterView(),
])
"""


@pytest.fixture
def told(project: Path) -> str:
    return TOLD.format(folder=str(project / "tests" / "unit" / "notebook" / "views"))


def run_more(notebook: Notebook, code: str) -> str:
    """What a cell more prints, run while the page stays."""
    notebook.command("notebook:insert-cell-below")
    content = "window.jupyterapp.shell.currentWidget.content"
    notebook.page.evaluate(f"code => {{ {content}.activeCell.model.sharedModel.setSource(code); }}", code)
    notebook.command("notebook:run-cell")
    output = notebook.page.locator(".jp-CodeCell.jp-mod-active .jp-OutputArea-output")
    return output.first.inner_text() if "print" in code else ""


@pytest.mark.soak
@pytest.mark.parametrize("theme", every(2, ["Dark", "Light"]))
def test_parts_share_a_run_and_a_row_and_go_on_together(
    theme: str, context: BrowserContext, lab: Lab, told: str, artefacts: Path
) -> None:
    path = lab.write(f"parts-{theme}", told, DASHBOARD, EMPTY, "RunPanel(run)")
    notebook = open_notebook(context, lab, path, f"JupyterLab {theme}")
    notebook.page.set_viewport_size({"width": 1300, "height": 2600})
    notebook.start_run()
    notebook.await_run()
    parts = notebook.output(".tfos-part")
    expect(parts).to_have_count(8 + 8)
    widths = parts.evaluate_all("nodes => nodes.map((node) => [node.dataset.part, node.offsetWidth])")
    assert min(width for part, width in widths if part != "stop") > 300, widths
    assert min(width for part, width in widths if part == "stop") > 40, widths
    expect(parts.locator(".tfos-headline").first).to_have_text("Training on 2 workers")
    stop = notebook.output("[data-part=stop] button")
    expect(stop.first).to_be_enabled()
    expect(stop.last).to_be_disabled()  # there is no run
    notebook.page.screenshot(path=artefacts / f"parts-{theme}.png")
    release = parts.get_by_role("button", name="Release train")
    expect(release).to_be_hidden()  # as long as the run goes on

    said = run_more(
        notebook, "run.go_on()\nprint(progress.phase, progress.epoch, progress.fraction, sorted(progress.metrics))"
    )
    assert said == "done 2 1.0 ['accuracy', 'loss', 'val_accuracy', 'val_loss']\n"
    expect(parts.locator(".tfos-headline").first).to_have_text("Trained on 2 workers")
    expect(notebook.output(".tfos-panel:not(.tfos-part) .tfos-headline")).to_have_text("Trained on 2 workers")
    release.click()
    expect(parts.locator(".tfos-feed .tfos-state")).to_have_text("released")
    expect(release).to_be_hidden()
    notebook.page.screenshot(path=artefacts / f"parts-ended-{theme}.png")
    expect(stop.first).to_be_disabled()
    for width in (900, 600):
        notebook.page.set_viewport_size({"width": width, "height": 2600})
        notebook.page.screenshot(path=artefacts / f"parts-{theme}-{width}.png")
    assert notebook.complaints == []


@pytest.mark.soak
def test_what_is_pointed_at_chosen_and_stopped_reaches_python_and_other_parts(
    context: BrowserContext, lab: Lab, told: str
) -> None:
    linked = """
one, two, table = Curves(run, metrics=["loss"]), Curves(run, metrics=["loss"], smooth=0.9), WorkerTable(run)
link = jslink((one, "cursor"), (two, "cursor"))
launcher = Launcher(lambda l2=0.00025, rate=0.0137: None, l2=(0.0, 0.01), rate=(1e-4, 1.0, "log"))
for history in other.state.history:
    history.update({f"m{number}": number for number in range(9)})
VBox([one, two, table, StopButton(run), launcher, Compare([other], metrics=["m8"]), Compare([other])])
"""
    grid = """
grid = GridspecLayout(2, 1, height="300px")
grid[0, 0], grid[1, 0] = Curves(other), WorkerTable(other)
grid
"""
    notebook = open_notebook(context, lab, lab.write("parts-linked", told, linked, grid))
    notebook.start_run()
    notebook.await_run()
    crowded = notebook.output(".widget-gridbox > *")
    heights = crowded.evaluate_all("nodes => nodes.map((node) => [node.offsetHeight, node.scrollHeight])")
    assert all(shown == 150 for shown, _ in heights), heights
    assert heights[0][1] > 150  # which scrolls
    last = crowded.last.locator("tbody tr").last
    last.scroll_into_view_if_needed()
    assert last.bounding_box()["y"] < crowded.last.bounding_box()["y"] + 150
    about = notebook.output("[data-part=compare] .tfos-about")
    expect(about).to_have_text(["", "", "5 more metrics without a curve: Curves(run, metrics=['m4', 'm5', 'm6', …])."])
    charts = notebook.output("[data-part=curves]").get_by_role("slider", name="loss by epoch")
    charts.first.focus()
    notebook.page.keyboard.press("Home")
    expect(charts.nth(1)).to_have_attribute("aria-label", "loss by epoch, smoothed")
    notebook.page.keyboard.press("ArrowRight")
    expect(charts.nth(1).locator(".tfos-readout")).to_have_text("epoch 0.2: loss 0.8586")
    notebook.output("[data-part=stop] button").first.click()
    notebook.output("[data-part=workers] tbody tr").nth(1).click()
    expect(notebook.output("[data-part=workers] tbody tr").nth(1)).to_have_css("font-weight", "600")
    expect(notebook.output("[data-part=workers] tbody tr").nth(0)).to_have_css("font-weight", "400")
    notebook.page.wait_for_timeout(500)  # what is pointed at is told ten times a second
    assert run_more(notebook, "print(one.cursor, two.cursor, table.selected_worker, run.stops)") == "None None 1 1\n"
    assert run_more(notebook, "print(launcher.chosen)") == "{'l2': 0.00025, 'rate': 0.0137}\n"
    run_more(notebook, "launcher.controls['rate'].value = 0.02")
    expect(notebook.output(".widget-readout").nth(1)).to_have_text("0.0200")
    assert run_more(notebook, "print(launcher.chosen)") == "{'l2': 0.00025, 'rate': 0.02}\n"
    run_more(notebook, "two.cursor = 1.0")
    expect(charts.first.locator(".tfos-readout")).to_have_text("epoch 1: loss 0.5 · val_loss 0.6")
    run_more(notebook, "one.run, table.run = other, None")
    expect(charts.first).to_have_attribute("aria-valuemax", "29")
    run_more(notebook, "failed = ToldRun(number=3).go_on(7)\nfinish(failed.state, 'error')\none.run = failed")
    expect(notebook.output("[data-part=curves] .tfos-empty").first).to_have_text("No epoch was finished.")
    expect(notebook.output("[data-part=workers]").first).to_contain_text("Workers are shown as soon as there is a run.")
    assert notebook.complaints == []


@pytest.mark.soak
def test_a_part_says_that_the_kernel_is_gone_and_is_a_picture_in_the_saved_notebook(
    context: BrowserContext, lab: Lab, told: str
) -> None:
    box = "HBox([VBox([Progress(run), StopButton(run), WorkerTable(run)]), Curves(run)])"
    notebook = open_notebook(context, lab, lab.write("parts-gone", told, box, "Curves(run)"))
    notebook.start_run()
    notebook.await_run()
    headline = notebook.output("[data-part=progress] .tfos-headline")
    expect(headline).to_have_text("Training on 2 workers")
    assert headline.evaluate("node => node.closest('.widget-vbox').offsetWidth") > 220
    spare = notebook.output(".tfos-spare")
    expect(spare).to_have_count(1)
    expect(spare).to_be_hidden()
    run_more(notebook, "exit()")
    expect(headline).to_have_text("Training on 2 workers, until the kernel went")
    expect(notebook.output("[data-part=workers] > [role=status]")).to_have_text("As it was when the kernel went.")
    expect(notebook.output("[data-part=stop] button")).to_be_hidden()
    expect(notebook.output("svg[role=img]").last).to_be_visible()
    cells = notebook.save().cells
    saved = cells[2].outputs[0].data
    assert "application/vnd.jupyter.widget-view+json" not in saved
    assert "<svg" in saved["text/html"]
    beside = cells[1].outputs[0].data["text/html"]
    assert len(re.findall(r"Drawn at \d", beside)) == 1
    assert "<svg" in beside


@pytest.mark.soak
def test_curves_can_be_smoothed_and_compared_runs_ticked_off(context: BrowserContext, lab: Lab, told: str) -> None:
    cell = "VBox([Curves(run, metrics=['loss'], smooth=0.9), Compare([run.go_on(), other])])"
    notebook = open_notebook(context, lab, lab.write("parts-compare", told, cell))
    notebook.start_run()
    notebook.await_run()
    smoothed = notebook.output("[data-part=curves]").get_by_role("slider")
    expect(smoothed).to_have_count(1)
    smoothed.focus()
    notebook.page.keyboard.press("Home")
    compared = notebook.output("[data-part=compare]")
    expect(compared.locator("tbody tr")).to_have_count(2)
    expect(compared.locator("thead")).to_contain_text("lr")
    lines = compared.get_by_role("slider", name="loss by epoch").locator(".tfos-line")
    expect(lines).to_have_count(4)
    compared.get_by_role("checkbox", name="Show run 1").uncheck()
    expect(lines).to_have_count(2)
    assert nbformat.validate(notebook.save()) is None
    assert notebook.complaints == []


@pytest.mark.soak
def test_what_ends_after_the_page_was_loaded_anew_is_what_the_notebook_keeps(
    context: BrowserContext, lab: Lab, told: str, artefacts: Path
) -> None:
    box = "HBox([VBox([Progress(run), LogView(run)]), VBox([Curves(run, metrics=['loss']), FeedTable(run)])])"
    notebook = open_notebook(context, lab, lab.write("parts-anew", told, "Progress(run)", box))
    notebook.start_run()
    notebook.await_run()
    headlines = notebook.output(".tfos-part .tfos-headline")
    expect(headlines).to_have_text(["Training on 2 workers"] * 2)
    columns = notebook.output(".widget-hbox > .widget-vbox").evaluate_all("nodes => nodes.map((n) => n.offsetWidth)")
    assert min(columns) > 400, columns
    notebook.save()
    notebook.page.reload()
    expect(headlines).to_have_text(["Training on 2 workers"] * 2, timeout=30_000)
    run_more(notebook, "run.go_on()")
    expect(headlines).to_have_text(["Trained on 2 workers"] * 2)
    notebook.page.screenshot(path=artefacts / "parts-anew.png")
    notebook.page.wait_for_timeout(500)
    saved = "".join(out.data.get("text/html", "") for cell in notebook.save().cells for out in cell.get("outputs", ()))
    assert saved.count("Trained on 2 workers") == 2
    assert "Training on 2 workers" not in saved
    assert notebook.complaints == []
