"""The live panel in JupyterLab, drawn from a told run in a real kernel."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, expect

from tests.soak import every

from .conftest import Gates
from .jupyter import FRAMES, Lab, open_notebook

SIMULATION = """
import sys; sys.path.insert(0, {folder!r})
from simulated import epoch_end, finish, new_state, pass_time, progress, run_through, tell
from tfos_magic.notebook.views.choice import choose_view
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
    return gates.code + SIMULATION.format(folder=str(project / "tests" / "unit" / "notebook" / "views"), world=world)


@pytest.mark.parametrize("theme", every(2, ["Light", "Dark"]))
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

    expect(panel.locator(".tfos-position")).to_contain_text("epoch 3 of 3 · step 5 of 10")
    expect(panel.get_by_role("progressbar", name="All epochs")).to_have_attribute("aria-valuenow", "83")
    expect(panel.locator(".tfos-position")).to_contain_text("left")
    # Of both workers, by their rows: 0.2857 after five steps and 0.2941 after four.
    expect(panel.locator(".tfos-metric", has_text="loss").first).to_contain_text("0.2894")
    expect(panel.get_by_role("slider")).to_have_count(3)
    expect(panel.locator(".tfos-line")).to_have_count(6)
    expect(notebook.output("pre").filter(has_text="the cell says hello")).to_be_visible()
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


def spilled(panel: Locator) -> list[str]:
    """What reaches over the panel's right edge, but for what is cut off or can be scrolled there."""
    found: list[str] = panel.evaluate(
        "panel => [...panel.querySelectorAll('*')].filter((node) => !node.closest('.tfos-cells, .tfos-log, svg') && "
        "node.getBoundingClientRect().right > panel.getBoundingClientRect().right).map((node) => node.className)"
    )
    return found


@pytest.mark.soak
def test_a_narrow_page_shows_every_tab_without_scrolling_sideways(
    context: BrowserContext, lab: Lab, gates: Gates, project: Path, artefacts: Path
) -> None:
    notebook = open_notebook(context, lab, lab.write("panel-narrow", simulation(gates, project, world=12)))
    notebook.start_run()
    gates.open("fed")
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-position")).to_contain_text("step 5 of 10")
    panel.evaluate("node => { node.style.width = '400px'; }")
    for name in ("Curves", "Workers", "Log"):
        panel.get_by_role("tab", name=name).click()
        panel.screenshot(path=artefacts / f"panel-narrow-{name}.png")
        assert spilled(panel) == []
    assert panel.evaluate("panel => panel.offsetWidth") == 400
    gates.open("trained")
    notebook.await_run()


@pytest.mark.soak
def test_the_keyboard_reaches_tabs_curves_and_values(
    context: BrowserContext, lab: Lab, gates: Gates, project: Path
) -> None:
    notebook = open_notebook(context, lab, lab.write("panel-keys", simulation(gates, project)))
    notebook.start_run()
    gates.open("fed")
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-position")).to_contain_text("epoch 3 of 3 · step 5 of 10")
    loss = panel.get_by_role("slider", name="loss by epoch")
    loss.focus()
    notebook.page.keyboard.press("Home")
    expect(loss).to_have_attribute("aria-valuetext", "epoch 0.1: loss 0.9091")
    for _ in range(9):
        notebook.page.keyboard.press("ArrowRight")
    expect(loss).to_have_attribute("aria-valuetext", "epoch 1: loss 0.5 · val_loss 0.6")
    expect(loss.locator(".tfos-readout")).to_have_text("epoch 1: loss 0.5 · val_loss 0.6")

    panel.get_by_role("tab", name="Curves").focus()
    notebook.page.keyboard.press("ArrowRight")
    workers = panel.get_by_role("tab", name="Workers")
    expect(workers).to_be_focused()
    expect(workers).to_have_attribute("aria-selected", "true")
    expect(panel.get_by_role("tabpanel", name="Workers")).to_be_visible()
    expect(panel.locator(".tfos-workers tbody tr")).to_have_count(2)
    notebook.page.keyboard.press("End")
    expect(panel.get_by_role("tab", name="Log")).to_be_focused()
    expect(panel.get_by_role("tab", name="TensorBoard")).to_be_hidden()
    gates.open("trained")
    notebook.await_run()
    assert notebook.complaints == []


CROWD = """
import sys, time; sys.path.insert(0, {folder!r})
from dataclasses import replace
from simulated import RUN, finish, new_state, pass_time, progress, tell
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.notebook.views.choice import choose_view
from tfos_magic.transport.messages import Output
state, view = new_state(200), choose_view("widget")
state.phase = RunPhase.RUNNING
view.open(state)
pass_gate("begin")
started = time.monotonic()
second = 0
while time.monotonic() - started < 6:
    second += 1
    for rank in range(200):
        rows = second * (30 if rank == 117 else 100)
        tell(state, replace(progress(rank, second // 50, second % 50, epochs=20, steps=50), rows=rows))
        tell(state, Output(RUN, rank, "stdout", f"line {{second}} of this worker"))
        view.update(state)
    pass_time(state, 0.2)
    time.sleep(0.02)
state.workers[42].state = "lost"
for turn in range(4):  # of many workers what changed is sent in turn
    view.view.update(state)
pass_gate("end")
finish(state)
view.close(state)
"""


@pytest.fixture
def heard(context: BrowserContext) -> list[str]:
    """The names of widget values that reach the pages of the context, one entry for each message."""
    messages: list[str] = []

    def listen(payload: str | bytes) -> None:
        text = payload if isinstance(payload, str) else payload.decode(errors="replace")
        if '"method": "update"' in text and '"picture"' in text:
            messages.append(text)

    context.on("page", lambda page: page.on("websocket", lambda socket: socket.on("framereceived", listen)))
    return messages


@pytest.mark.soak
def test_two_hundred_workers_stay_smooth_and_those_in_trouble_stand_out(
    context: BrowserContext, lab: Lab, gates: Gates, project: Path, artefacts: Path, heard: list[str]
) -> None:
    gates.make("begin", "end")
    cell = gates.code + CROWD.format(folder=str(project / "tests" / "unit" / "notebook" / "views"))
    notebook = open_notebook(context, lab, lab.write("panel-crowd", cell))
    notebook.start_run()
    panel = notebook.output(".tfos-panel")
    panel.get_by_role("tab", name="Workers").click()
    expect(panel.get_by_role("option")).to_have_count(200)
    gates.open("begin")
    expect(panel.locator(".tfos-position")).to_contain_text("step")
    before = len(heard)
    frames = notebook.page.evaluate(FRAMES)
    messages = (len(heard) - before) / 4
    print(f"{frames:.0f} frames/s, {messages:.1f} messages/s")
    assert frames >= 30
    assert 1 <= messages <= 4.5  # the edges of the four seconds may cut one more in

    expect(panel.locator(".tfos-summary")).to_contain_text("in trouble: 42 lost, 117 slow")
    expect(panel.get_by_role("option", name="worker 117, training · ⚠ slow")).to_contain_text("117 ⚠")
    expect(panel.get_by_role("option", name="worker 42, ⚠ lost")).to_contain_text("42 ✗")
    panel.get_by_role("option", name="worker 42").click()
    expect(panel.locator(".tfos-detail")).to_contain_text("Worker 42: 127.0.0.1 · pid 4042")
    notebook.page.keyboard.press("ArrowRight")
    expect(panel.locator(".tfos-detail")).to_contain_text("Worker 43:")
    panel.screenshot(path=artefacts / "panel-crowd.png")
    panel.get_by_role("tab", name="Log").click()
    panel.get_by_label("Show lines of").select_option("42")
    expect(panel.get_by_role("log")).to_contain_text("of this worker")
    gates.open("end")
    notebook.await_run()
    assert notebook.complaints == []


ENDLESS = """
import sys, time; sys.path.insert(0, {folder!r})
from simulated import finish, new_state, progress, tell
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.notebook.views.choice import choose_view
state, view = new_state(), choose_view("widget")
state.phase = RunPhase.RUNNING
view.open(state)
interrupts = 0
deadline = time.monotonic() + 60
while interrupts < 2 and time.monotonic() < deadline:
    try:
        while time.monotonic() < deadline:
            tell(state, progress(0, 0, 3))
            view.update(state)
            time.sleep(0.05)
    except KeyboardInterrupt:
        interrupts += 1
        state.phase = RunPhase.STOPPING
        view.update(state)
state.notices.append(f"{{interrupts}} interrupts")
finish(state, "stopped")
view.close(state)
"""


def test_stop_and_stop_now_interrupt_the_kernel_while_the_cell_runs(
    context: BrowserContext, lab: Lab, project: Path
) -> None:
    cell = ENDLESS.format(folder=str(project / "tests" / "unit" / "notebook" / "views"))
    notebook = open_notebook(context, lab, lab.write("panel-stop", cell))
    notebook.start_run()
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-position")).to_contain_text("step 3")
    panel.get_by_role("button", name="Stop", exact=True).click()
    expect(panel.locator(".tfos-headline")).to_have_text("Stopping 2 workers", timeout=3_000)
    panel.get_by_role("button", name="Stop now").click()
    expect(notebook.output(".tfos-card")).to_contain_text("2 interrupts")
    notebook.await_run()
    assert notebook.complaints == []


@pytest.mark.soak
def test_where_the_server_cannot_be_asked_stop_says_what_to_use(
    context: BrowserContext, lab: Lab, gates: Gates, project: Path
) -> None:
    notebook = open_notebook(context, lab, lab.write("panel-no-stop", simulation(gates, project)))
    notebook.page.route("**/interrupt", lambda route: route.fulfill(status=403, body=""))
    notebook.start_run()
    panel = notebook.output(".tfos-panel")
    panel.get_by_role("button", name="Stop", exact=True).click()
    expect(panel.get_by_role("button", name="Use Kernel ▸ Interrupt")).to_be_visible()
    for gate in ("fed", "trained"):
        gates.open(gate)
    notebook.await_run()


RELOADED = """
import sys, time; sys.path.insert(0, {folder!r})
from pathlib import Path
from simulated import epoch_end, finish, new_state, pass_time, progress, tell
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.notebook.views.choice import choose_view
state, view = new_state(), choose_view("widget")
state.phase = RunPhase.RUNNING
view.open(state)
step, deadline = 0, time.monotonic() + 60
while not Path({ending!r}).exists() and time.monotonic() < deadline:
    step += 1
    pass_time(state, 0.1)
    tell(state, *(progress(rank, 0, step, steps=100_000) for rank in (0, 1)))
    view.update(state)
    time.sleep(0.05)
tell(state, epoch_end(0, loss=0.125))
finish(state)
view.close(state)
"""


@pytest.mark.soak
def test_a_page_loaded_again_mid_run_shows_the_live_panel_and_its_end(
    context: BrowserContext, lab: Lab, project: Path, tmp_path: Path, artefacts: Path
) -> None:
    ending = tmp_path / "end"
    cell = RELOADED.format(folder=str(project / "tests" / "unit" / "notebook" / "views"), ending=str(ending))
    notebook = open_notebook(context, lab, lab.write("panel-reload", cell, "print(6 * 7)"))
    notebook.start_run()
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-position")).to_contain_text("step")
    notebook.save()
    notebook.page.reload()
    expect(panel.locator(".tfos-position")).to_contain_text("step", timeout=30_000)
    shown = panel.locator(".tfos-position").inner_text()
    expect(panel.locator(".tfos-position")).not_to_have_text(shown)
    notebook.page.locator(".jp-CodeCell").nth(1).locator(".cm-content").click()
    notebook.page.keyboard.press("Shift+Enter")  # waits in the kernel's queue
    notebook.page.screenshot(path=artefacts / "panel-after-reload.png")

    ending.touch()
    card = notebook.output(".tfos-card")
    expect(card).to_contain_text("Trained on 2 workers")
    expect(card).to_contain_text("loss 0.125")
    expect(panel).to_have_count(0)
    expect(notebook.output("pre").filter(has_text="42")).to_be_visible()
    saved = "".join(output.data["text/html"] for output in notebook.save().cells[0].outputs)
    assert saved.count("Trained on 2 workers") == 1
    assert "had not ended" not in saved


@pytest.mark.soak
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


KILLED = """
import os, signal
from tfos_magic.widgets import spare_card
spare_card.FIRST_SECONDS = spare_card.SECONDS_BETWEEN = 0.0
"""


@pytest.mark.soak
def test_a_killed_kernel_leaves_the_card_as_it_last_was(
    context: BrowserContext, lab: Lab, gates: Gates, project: Path, artefacts: Path
) -> None:
    cell = KILLED + simulation(gates, project).replace(
        'pass_gate("trained")', 'print(os.getpid()); pass_gate("trained")'
    )
    notebook = open_notebook(context, lab, lab.write("panel-killed", cell))
    notebook.start_run()
    gates.make("end").open("fed")
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-position")).to_contain_text("step 5 of 10")
    spare = notebook.output(".tfos-spare")
    expect(spare).to_have_count(1)
    expect(spare).to_be_hidden()
    printed = notebook.output("pre").filter(has_text=re.compile(r"\d+\s*$"))
    os.kill(int(printed.inner_text().split()[-1]), signal.SIGKILL)
    expect(panel).to_have_attribute("data-phase", "gone")
    expect(panel.get_by_role("button", name="Stop")).to_be_hidden()
    notebook.page.get_by_role("button", name="Ok", exact=True).click()
    notebook.page.screenshot(path=artefacts / "panel-killed-live.png")
    notebook.save()
    notebook.shut_kernel_down()
    notebook.open()
    expect(spare).to_be_visible()
    expect(spare).to_contain_text("step 5 of 10")
    expect(notebook.page.get_by_text("model not found")).to_be_attached()
    expect(notebook.page.get_by_text("model not found")).to_be_hidden()
    notebook.page.screenshot(path=artefacts / "panel-killed.png")
