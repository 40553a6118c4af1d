"""A dashboard over a real cluster: controls that train, runs compared, another size, the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from .jupyter import Lab, open_notebook

START_MS = 120_000

SETUP = """
%load_ext tfos_magic
import tfos_magic
from pyspark.sql import SparkSession, functions as F
from tfos_magic.widgets import Launcher
spark = (SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
         .config("spark.ui.showConsoleProgress", "false").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
points = spark.range(0, 600, 1, 3).select(
    F.array(*[F.rand(i).cast("float") for i in range(4)]).alias("x"), (F.col("id") % 2).alias("y"))
"""
LAUNCH = """
@tfos_magic.distributed(workers=2, label="y")
def train(points, rate=0.1, epochs=2):
    import keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    model.fit(points, epochs=epochs)
    return model

launcher = Launcher(train, points=points, rate=(1e-3, 1.0, "log"), epochs=[2, 5_000])
launcher
"""


@pytest.mark.soak
def test_a_launcher_trains_stops_and_compares_and_the_dashboard_scales(
    context: BrowserContext, lab: Lab, artefacts: Path
) -> None:
    path = lab.write("dashboard", SETUP, LAUNCH, "%tfos dashboard", "%tfos runs")
    notebook = open_notebook(context, lab, path)
    page = notebook.page
    page.set_viewport_size({"width": 1300, "height": 2200})
    cells = page.locator(".jp-CodeCell")
    notebook.start_run()
    expect(notebook.output(".tfos-panel").first).to_be_visible(timeout=START_MS)
    launcher, dashboard = cells.nth(1), cells.nth(2)
    train = launcher.get_by_role("button", name="Train")
    expect(dashboard.locator("[data-part=cluster] .tfos-headline")).to_have_text("No cluster")

    train.click()
    compared = launcher.locator("[data-part=compare] tbody tr")
    expect(compared).to_have_count(1)
    expect(compared.first).to_contain_text("done", timeout=START_MS)
    launcher.locator("select").first.select_option("5000")
    train.click()
    expect(compared).to_have_count(2)
    expect(launcher.locator("[data-part=progress] .tfos-position")).to_contain_text("of 5,000", timeout=START_MS)
    train.click()
    expect(compared.nth(2)).to_contain_text("queued")
    expect(dashboard.locator("[data-part=panel] .tfos-headline")).to_have_text("Training on 2 workers")
    expect(dashboard.locator("[data-part=cluster]")).to_contain_text("1 run next")
    page.screenshot(path=artefacts / "dashboard-live.png")
    launcher.get_by_role("button", name="Stop").click()
    expect(compared.nth(1)).to_contain_text("stopped", timeout=20_000)
    expect(compared.nth(2)).to_contain_text("running", timeout=20_000)

    content = "window.jupyterapp.shell.currentWidget.content"
    set_source = f"code => {{ {content}.widgets[3].model.sharedModel.setSource(code); }}"
    page.evaluate(set_source, "launcher.runs[2].stop()\n%tfos runs")
    cells.nth(3).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(compared.nth(2)).to_contain_text("stopped", timeout=20_000)
    expect(cells.nth(3).locator("table")).to_contain_text("5000")

    view = dashboard.locator("[data-part=cluster]")
    train.click()
    expect(view).to_contain_text("train 4 is running", timeout=START_MS)
    view.get_by_role("button", name="Stop cluster").dblclick()  # whose second click is no answer
    expect(view.get_by_role("button", name="End train 4 too?")).to_be_visible()
    expect(view.get_by_role("button", name="Stop cluster")).to_be_visible(timeout=10_000)
    launcher.get_by_role("button", name="Stop").click()
    expect(view).to_contain_text("Nothing runs", timeout=20_000)
    view.get_by_role("spinbutton", name="Number of workers").fill("9")
    view.get_by_role("button", name="Scale").click()
    expect(view.locator(".tfos-error")).to_contain_text("slots", timeout=START_MS)
    view.get_by_role("spinbutton", name="Number of workers").fill("3")
    view.get_by_role("button", name="Scale").click()
    expect(view.locator("tbody tr")).to_have_count(3, timeout=START_MS)
    page.screenshot(path=artefacts / "dashboard-ended.png")
    view.get_by_role("button", name="Stop cluster").click()
    expect(view.locator(".tfos-headline")).to_have_text("No cluster", timeout=START_MS)
    assert notebook.complaints == []
