"""The live panel of a sweep in JupyterLab, drawn from a told sweep in a real kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.soak import every

from .conftest import Gates
from .jupyter import FRAMES, Lab, open_notebook

SIMULATION = """
import sys; sys.path.insert(0, {folder!r})
from simulated import ToldSweep
from tfos_magic.widgets.sweep_view import SweepView
sweep, view = ToldSweep({trials}, pruner="median"), SweepView()
view.open(sweep)
sweep.play({played}, failing=3)
view.update(sweep)
live = sweep.begin({played})
sweep.epoch(live)
sweep.epoch(live)
view.update(sweep)
pass_gate("shown")
sweep.finish()
view.close(sweep)
"""


# What of the charts reaches over the panel, or of the lines over their chart.
OUTSIDE = """panel => {
  const box = part => part.getBoundingClientRect();
  const over = (inner, outer) => ["left", "top"].some(side => inner[side] < outer[side] - 1)
    || ["right", "bottom"].some(side => inner[side] > outer[side] + 1);
  const charts = [...panel.querySelectorAll(".tfos-chart-svg")];
  const found = charts.flatMap(svg => [...svg.children].filter(part => over(box(part), box(svg))));
  const wide = charts.filter(svg => over(box(svg), box(panel)));
  return [...found, ...wide].map(part => part.outerHTML.slice(0, 200));
}"""


def simulation(gates: Gates, project: Path, trials: int, played: int) -> str:
    gates.make("shown")
    folder = str(project / "tests" / "unit" / "sweeps")
    return gates.code + SIMULATION.format(folder=folder, trials=trials, played=played)


@pytest.mark.parametrize("theme", every(2, ["Light", "Dark"]))
def test_trials_are_rows_curves_and_lines_and_the_saved_notebook_has_the_card(
    theme: str, context: BrowserContext, lab: Lab, gates: Gates, project: Path, artefacts: Path
) -> None:
    path = lab.write(f"sweep-{theme}", simulation(gates, project, 60, 50))
    notebook = open_notebook(context, lab, path, f"JupyterLab {theme}")
    notebook.start_run()
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-headline")).to_have_text("Searching on 2 workers")
    expect(panel.locator(".tfos-position")).to_contain_text("50 of 60 trials")
    expect(panel.locator(".tfos-metric").first).to_contain_text("best val_accuracy")
    rows = panel.locator(".tfos-trials tbody tr:not([aria-hidden])")
    expect(rows.first).to_contain_text("complete")
    assert rows.count() < 40  # those in sight
    expect(panel.locator(".tfos-chart-title", has_text="Importance")).to_be_visible()
    expect(panel.locator(".tfos-chart-title", has_text="Parameters")).to_be_visible()
    assert panel.evaluate(OUTSIDE) == []
    choices = {text for text in rows.locator("td:nth-child(4)").all_inner_texts() if text}
    assert choices == {"relu", "None", "a name that is long a n…"}
    best, *others = rows.locator("td:first-child").all_inner_texts()
    assert best.startswith("★ ")
    numbers = [int(text) for text in others]
    assert numbers == sorted(numbers)
    panel.locator("tr[data-state=failed]").click()
    expect(panel.locator(".tfos-said")).to_contain_text("units</b> must be even")
    panel.screenshot(path=artefacts / f"sweep-failed-{theme}.png")
    panel.get_by_role("group", name="Trials").press("End")
    expect(panel.locator("tr[aria-selected=true]")).to_contain_text(re.compile("training|pruning"))
    expect(panel.locator("tr[aria-selected=true]")).to_contain_text("2 of 10")
    expect(panel.locator(".tfos-readout").first).to_have_text("val_accuracy of trial 50")
    panel.screenshot(path=artefacts / f"sweep-{theme}.png")
    gates.open("shown")
    notebook.await_run()
    card = notebook.output(".tfos-card")
    expect(card).to_contain_text("★")
    expect(panel).to_have_count(0)
    notebook.page.screenshot(path=artefacts / f"sweep-card-{theme}.png")
    saved = notebook.save().cells[0].outputs
    assert set(saved[0].data) == {"text/html", "text/plain"}
    assert not notebook.complaints


MANY = """
import sys; sys.path.insert(0, {folder!r})
import json, time
from simulated import ToldSweep
from tfos_magic.widgets.sweep_view import SweepView
sweep, view = ToldSweep(1000), SweepView()
sweep.play(900)
view.open(sweep)
sent, send = [], view._panel.comm.send
def count(data=None, *args, **kwargs):
    sent.append(len(json.dumps(data, ensure_ascii=False).encode()))
    return send(data, *args, **kwargs)
view._panel.comm.send = count
pass_gate("begin")
busy, live, began = 0.0, [sweep.begin(900), sweep.begin(901)], time.monotonic()
following = 902
while time.monotonic() - began < 8:
    for place, trial in enumerate(live):
        if trial.pruned or len(trial.run.state.history) == 10:
            sweep.end(trial)
            live[place] = sweep.begin(following)
            following += 1
        else:
            sweep.epoch(trial)
    used = time.thread_time()
    view.update(sweep)
    busy += time.thread_time() - used
    time.sleep(0.25)
told = {{"kernel": busy / (time.monotonic() - began), "largest": max(sent), "mean": sum(sent) / len(sent)}}
pass_gate("end")
sweep.finish()
view.close(sweep)
print(json.dumps(told))
"""


@pytest.mark.soak
def test_a_thousand_trials_are_no_load(
    context: BrowserContext, lab: Lab, gates: Gates, project: Path, artefacts: Path
) -> None:
    gates.make("begin", "end")
    path = lab.write("sweep-many", gates.code + MANY.format(folder=str(project / "tests" / "unit" / "sweeps")))
    notebook = open_notebook(context, lab, path)
    notebook.start_run()
    panel = notebook.output(".tfos-panel")
    expect(panel.locator(".tfos-position")).to_contain_text("900 of 1,000 trials", timeout=120_000)
    gates.open("begin")
    frames = notebook.page.evaluate(FRAMES)
    panel.get_by_role("group", name="Trials").press("End")
    expect(panel.locator("tr[aria-selected=true]")).to_be_visible()
    panel.screenshot(path=artefacts / "sweep-many.png")
    gates.open("end")
    notebook.await_run()
    told = json.loads(notebook.output("pre").last.inner_text())
    print(f"{frames:.0f} frames a second, {told}")
    assert told["largest"] < 40_000
    assert not notebook.complaints
