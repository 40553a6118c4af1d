"""Spark ML's own pipelines and searches, with Keras in them."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from typing import Any

import cloudpickle
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.classification import OneVsRest
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import IndexToString, StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder, TrainValidationSplit

from tests.ml import model_kinds
from tests.ml.model_kinds import classes, linear
from tests.soak import every
from tfos_magic import TFCluster
from tfos_magic.cluster.runs.known_runs import KnownRuns
from tfos_magic.cluster.shared import SHARED
from tfos_magic.errors import WorkerError
from tfos_magic.ml import KerasClassifier, KerasRegressor
from tfos_magic.notebook.signals import interruptible
from tfos_magic.notebook.views.tables import run_table

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
for module in (model_kinds, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)


def pipeline(**options: Any) -> Pipeline:
    columns = VectorAssembler(inputCols=["a", "b", "c"], outputCol="assembled")
    scaled = StandardScaler(inputCol="assembled", outputCol="scaled", withMean=True)
    keras = KerasClassifier(modelFn=classes, featuresCol="scaled", labelCol="index", seed=2, verbose=0, **options)
    return Pipeline(stages=[StringIndexer(inputCol="kind", outputCol="index"), columns, scaled, keras])


@pytest.mark.soak
def test_a_pipeline_of_spark_and_keras(cluster: TFCluster, df: Any) -> None:
    fitted = pipeline(epochs=50, batchSize=8).fit(df)
    predicted = fitted.transform(df)
    assert MulticlassClassificationEvaluator(labelCol="index", metricName="accuracy").evaluate(predicted) > 0.8
    named = IndexToString(inputCol="prediction", outputCol="named", labels=fitted.stages[0].labels).transform(predicted)
    assert named.where("named = kind").count() > 0.8 * df.count()
    assert predicted.schema["index"].metadata["ml_attr"]["vals"] == fitted.stages[0].labels


@pytest.mark.soak
def test_folds_of_a_grid_train_side_by_side_and_the_best_is_found(cluster: TFCluster, df: Any) -> None:
    asked = KerasRegressor(modelFn=linear, seed=2, verbose=0)
    grid = ParamGridBuilder().addGrid(asked.epochs, [1, 4]).addGrid(asked.modelParams, [{"rate": 0.1}]).build()
    search = CrossValidator(
        estimator=asked, estimatorParamMaps=grid, evaluator=RegressionEvaluator(), numFolds=2, seed=3, parallelism=2
    )
    known = KnownRuns(SHARED.queue)
    fitted = search.fit(df)
    assert fitted.avgMetrics[1] < fitted.avgMetrics[0]
    told = run_table(known.states)["text/plain"]
    assert told.count("epochs 1, modelParams {'rate': 0.1}") == told.count("epochs 4, modelParams") == 2
    assert len(fitted.bestModel.summary.history["loss"]) == 4
    assert SHARED.running


@pytest.mark.soak
def test_models_of_a_search_are_those_of_single_fits(cluster: TFCluster, df: Any) -> None:
    asked = KerasRegressor(modelFn=linear, seed=2, shuffle=False, verbose=0)
    maps = [{asked.epochs: 1}, {asked.epochs: 3}, {asked.batchSize: 16}]
    for (index, model), params in zip(asked.fitMultiple(df, maps), maps, strict=True):
        single = asked.fit(df, params)
        assert params == maps[index]
        assert model.predict([1.0, 2.0, 3.0]) == pytest.approx(single.predict([1.0, 2.0, 3.0]), rel=1e-5)
        assert model.uid == single.uid == asked.uid


@pytest.mark.soak
def test_searches_over_pipelines_and_one_against_the_rest(cluster: TFCluster, df: Any) -> None:
    whole = pipeline()
    grid = ParamGridBuilder().addGrid(whole.getStages()[-1].epochs, [1, 5]).build()
    evaluator = MulticlassClassificationEvaluator(labelCol="index")
    best = TrainValidationSplit(estimator=whole, estimatorParamMaps=grid, evaluator=evaluator, seed=1).fit(df)
    assert len(best.bestModel.stages[-1].summary.history["loss"]) in (1, 5)
    binary = KerasClassifier(modelFn=classes, modelParams={"outputs": 2}, epochs=10, seed=1, verbose=0)
    rest = OneVsRest(classifier=binary, labelCol="place").fit(df.selectExpr("features", "double(place) place"))
    told = rest.transform(df)
    assert MulticlassClassificationEvaluator(labelCol="place", metricName="accuracy").evaluate(told) > 0.7


def unlucky(params: Any) -> Any:
    if params["units"] == 13:
        raise ValueError("thirteen units bring bad luck")
    return linear({})


@pytest.mark.parametrize("parallelism", every(2, [2, 1]))
def test_the_error_of_one_point_is_that_of_the_search(cluster: TFCluster, df: Any, parallelism: int) -> None:
    asked = KerasRegressor(modelFn=unlucky, epochs=40, seed=2, verbose=0)
    search = CrossValidator(estimator=asked, evaluator=RegressionEvaluator(), numFolds=2, parallelism=parallelism)
    maps = [{asked.modelParams: {"units": units}} for units in (3, 13)]
    with pytest.raises(WorkerError, match="thirteen units bring bad luck"):
        search.setEstimatorParamMaps(maps).fit(df)
    gc.collect()  # PySpark leaves its pool open, which complains when it goes


@pytest.mark.soak
def test_an_interrupt_ends_a_search_and_leaves_no_cluster(df: Any) -> None:
    SHARED.stop()
    asked = KerasRegressor(modelFn=linear, epochs=10_000, seed=2, verbose=0)
    grid = ParamGridBuilder().addGrid(asked.batchSize, [8, 16]).build()
    search = CrossValidator(estimator=asked, estimatorParamMaps=grid, evaluator=RegressionEvaluator(), parallelism=2)

    def interrupt() -> None:
        while not any(run.state.epoch > 2 for queue in [SHARED.queue] for held in queue.runs for run in held.runs):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with interruptible(), pytest.raises(KeyboardInterrupt):
        search.fit(df)
    deadline = time.monotonic() + 20
    while SHARED.cluster is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert SHARED.cluster is None
    assert not SHARED.queue.runs
