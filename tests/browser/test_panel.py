"""The live panel in JupyterLab, drawn from a told run in a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from .conftest import Gates
from .jupyter import Lab, open_notebook

SIMULATION = """
import sys; sys.path.insert(0, {folder!r})
from simulated import epoch_end, finish, new_state, pass_time, progress, run_through, tell
from tfos_magic.notebook.view import choose_view
view = choose_view("auto").view
moments = run_through(new_state({world}))
view.open(next(moments))
for moment in moments:
    if moment.phase.ended:
        break
    view.update(moment)
    if moment.feeds and not moment.feeds["train"].done and moment.feeds["train"].rows == 960:
        pass_gate("fed")
    if moment.stage == "train" and (moment.epoch, moment.step) == (2, 5):
        view.output("the cell says hello\\n", "stdout")
        pass_gate("trained")
view.close(moment)
"""


def simulation(gates: Gates, project: Path, world: int = 2) -> str:
    gates.make("fed", "trained")
    return gates.code + SIMULATION.format(folder=str(project / "tests" / "unit" / "views"), world=world)


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_the_panel_updates_while_the_cell_runs_and_stays_as_a_card(
    theme: str, context: BrowserContext, lab: Lab, gates: Gates, project: Path, artefacts: Path
) -> None:
    path = lab.write(f"panel-{theme}", simulation(gates, project))
    notebook = open_notebook(context, lab, path, f"JupyterLab {theme}")
    notebook.start_run()

    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-headline")).to_have_text("Feeding 2 workers")
    expect(panel.locator(".tfos-feeds li")).to_contain_text("960 rows")
    panel.screenshot(path=artefacts / f"panel-feeding-{theme}.png")
    gates.open("fed")

    expect(panel.locator(".tfos-position")).to_have_text("epoch 3 of 3 · step 5 of 1083%")
    expect(panel.get_by_role("progressbar", name="All epochs")).to_have_attribute("aria-valuenow", "83")
    expect(panel.locator(".tfos-workers li")).to_have_count(2)
    expect(panel.locator(".tfos-metric", has_text="loss").first).to_contain_text("0.2857")
    expect(panel.locator("svg path")).to_have_count(2)
    expect(notebook.output("pre")).to_contain_text("the cell says hello")
    panel.screenshot(path=artefacts / f"panel-training-{theme}.png")
    gates.open("trained")

    notebook.await_run()
    card = notebook.output(".tfos-card[data-phase=done]")
    expect(card).to_contain_text("Trained on 2 workers")
    expect(panel).to_have_count(0)
    notebook.page.screenshot(path=artefacts / f"panel-done-{theme}.png")
    shown = card.inner_text()

    saved = notebook.save().cells[0].outputs
    assert set(saved[0].data) == {"text/html", "text/plain"}
    notebook.shut_kernel_down()
    notebook.open(f"JupyterLab {theme}")
    expect(card).to_be_visible()
    assert card.inner_text() == shown
    card.screenshot(path=artefacts / f"panel-reloaded-{theme}.png")
    assert notebook.complaints == []


def test_a_narrow_page_shows_all_of_many_workers_without_scrolling_sideways(
    context: BrowserContext, lab: Lab, gates: Gates, project: Path, artefacts: Path
) -> None:
    notebook = open_notebook(context, lab, lab.write("panel-narrow", simulation(gates, project, world=24)))
    notebook.start_run()
    gates.open("fed")
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-position")).to_contain_text("step 5 of 10")
    panel.evaluate("node => { node.style.width = '400px'; }")
    expect(panel.locator(".tfos-workers li")).to_have_count(24)
    spilled = panel.evaluate(
        "panel => [...panel.querySelectorAll('*')].filter((node) => "
        "node.getBoundingClientRect().right > panel.getBoundingClientRect().right).map((node) => node.className)"
    )
    assert spilled == []
    assert panel.evaluate("panel => panel.offsetWidth") == 400
    panel.screenshot(path=artefacts / "panel-narrow.png")
    gates.open("trained")
    notebook.await_run()


def test_reduced_motion_stills_the_bars(browser: Browser, lab: Lab, gates: Gates, project: Path) -> None:
    with browser.new_context(reduced_motion="reduce") as context:
        notebook = open_notebook(context, lab, lab.write("panel-still", simulation(gates, project)))
        notebook.start_run()
        bar = notebook.output(".tfos-overall .tfos-bar-done")
        expect(bar).to_have_css("animation-name", "none")
        expect(bar).to_have_css("transition-duration", "0s")
        gates.open("fed")
        gates.open("trained")
        notebook.await_run()
