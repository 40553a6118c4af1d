"""The tutorial on pipelines: Keras beside Spark's stages, searched, saved, loaded, and asked by SQL."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("09_pipeline")


def test_the_pipeline_predicts_better_than_chance(executed: Executed) -> None:
    found = re.search(r"accuracy: (\S+)", executed.text("from pyspark.ml.evaluation"))
    assert found is not None
    assert float(found[1]) > 0.7


def test_every_point_of_the_grid_has_a_score(executed: Executed) -> None:
    scores = re.findall(r"^(0\.\d+) \{", executed.text("from pyspark.ml.tuning"), re.MULTILINE)
    assert len(scores) == 4
    assert max(map(float, scores)) > 0.7


def test_sql_reads_what_the_loaded_pipeline_predicts(executed: Executed) -> None:
    shown = executed.text("from pyspark.ml import PipelineModel")
    assert len(re.findall(r"\| *(female|male)\| *[123]\|", shown)) == 6
    assert (executed.folder / "saved_pipeline" / "metadata").is_dir()
