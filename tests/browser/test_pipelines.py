"""Estimators of Spark ML in a notebook: a fit shows the panel, a search one table of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from .jupyter import Lab, open_notebook

SETUP = """
import keras
from pyspark.sql import SparkSession
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from tfos_magic.ml import KerasRegressor
spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.range(400).selectExpr("array(double(id % 7), double(id % 3)) features", "double(id % 7) * 2 label")

def make(params):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(params.get("rate", 0.01)), "mse")
    return model
"""
FIT = "asked = KerasRegressor(modelFn=make, epochs=4, seed=1)\nmodel = asked.fit(rows)"
SEARCH = """
rates = [{"rate": 0.01}, {"rate": 0.001}]
grid = ParamGridBuilder().addGrid(asked.modelParams, rates).addGrid(asked.epochs, [1, 3]).build()
found = CrossValidator(estimator=asked, estimatorParamMaps=grid, evaluator=RegressionEvaluator(), numFolds=2).fit(rows)
"""


@pytest.mark.soak
def test_a_fit_shows_the_panel_and_a_search_one_table(context: BrowserContext, lab: Lab, artefacts: Path) -> None:
    notebook = open_notebook(context, lab, lab.write("pipelines", SETUP, FIT, SEARCH))
    notebook.page.set_viewport_size({"width": 1300, "height": 1900})
    notebook.start_run()
    notebook.await_run()
    cells = notebook.page.locator(".jp-CodeCell")
    expect(cells.nth(1).locator(".tfos-headline, .tfos-card").first).to_contain_text("Trained on 2 workers")
    compared = cells.nth(2).locator("[data-part=compare] tbody tr")
    expect(compared).to_have_count(8)
    expect(compared.last).to_contain_text("done")
    notebook.page.screenshot(path=artefacts / "pipelines.png")
    assert notebook.complaints == []
