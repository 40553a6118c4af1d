"""Estimators train what a cell and one process train, and their models predict."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest
from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F

from tests.ml import model_kinds
from tests.ml.model_kinds import classes, linear, subclassed
from tests.soak import every
from tfos_magic import TFCluster
from tfos_magic.cluster.shared import SHARED
from tfos_magic.errors import DataError, UsageError
from tfos_magic.ml import KerasClassifier, KerasEstimator, KerasRegressor
from tfos_magic.ml.fit_on_workers import Facts
from tfos_magic.ml.logits import gives_logits
from tfos_magic.ml.scores import Scores

for module in (model_kinds, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)
PLAIN = {"shuffle": False, "seed": 4, "verbose": 0}


def alone(values: dict[str, Any], rows: Any = slice(None), weight: Any = None, **options: Any) -> Any:
    """What one process trains on these rows."""
    keras.utils.set_random_seed(4)
    model = linear({})
    x, y = values["x"][rows], values["label"][rows]
    history = model.fit(x, y, sample_weight=weight, epochs=3, shuffle=False, verbose=0, **options)
    return model, history.history


def gap(model: Any, other: Any) -> float:
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return float(max(np.abs(mine - theirs).max() for mine, theirs in pairs))


def test_weights_are_those_of_a_cell_and_of_one_process(cluster: TFCluster, df: Any, values: dict[str, Any]) -> None:
    fitted = KerasEstimator(modelFn=linear, epochs=3, **PLAIN).fit(df)
    expected, history = alone(values)
    assert gap(fitted.keras, expected) < 1e-5
    assert fitted.summary.history["loss"] == pytest.approx(history["loss"], rel=1e-5)
    assert fitted.summary.seconds > 0
    assert fitted.summary.bytes > 0
    cell = cluster.run(
        "model = linear({}); model.fit(train, epochs=3, verbose=0)",
        names={"linear": linear},
        frames={"train": df},
        features=["features"],
        label="label",
        shuffle=False,
        seed=4,
        outputs=["model"],
    )
    assert gap(fitted.keras, cell["model"]) == 0


@pytest.mark.soak
def test_rows_weigh_and_those_held_back_validate(cluster: TFCluster, df: Any, values: dict[str, Any]) -> None:
    asked = KerasRegressor(model_fn=linear, epochs=3, weight_col="weight", validation_indicator_col="held", **PLAIN)
    fitted = asked.fit(df)
    held = values["held"]
    told = {"validation_data": (values["x"][held], values["label"][held], values["weight"][held])}
    expected, history = alone(values, ~held, values["weight"][~held], **told)
    assert gap(fitted.keras, expected) < 1e-5
    assert fitted.summary.history.keys() == history.keys()
    assert fitted.summary.history["val_loss"] == pytest.approx(history["val_loss"], rel=1e-5)
    assert fitted.evaluate(df.where("held"))["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-5)


@pytest.mark.soak
def test_a_line_is_found_and_predicted(cluster: TFCluster, df: Any) -> None:
    fitted = KerasRegressor(modelFn=linear, modelParams={"units": 1}, epochs=25, seed=1, verbose=0).fit(df)
    predicted = fitted.transform(df)
    assert predicted.schema["prediction"].dataType.typeName() == "double"
    assert RegressionEvaluator(metricName="mae").evaluate(predicted) < 1e-2
    assert fitted.predict([1.0, 1.0, 1.0]) == pytest.approx(2.5, abs=1e-2)
    with pytest.raises(DataError, match=r"one row for the model's inputs .*shape"):
        fitted.predict("text")
    assert fitted.evaluate(df)["mae"] < 1e-2


CLASSES: list[tuple[str, dict[str, Any], list[float]]] = [
    ("gaps", {"activation": None}, [2.0, 5.0, 9.0]),
    ("place", {}, [0.0, 1.0, 2.0]),
    ("two", {"outputs": 1, "activation": "sigmoid"}, [0.0, 1.0]),
    ("two", {"outputs": 1, "activation": None}, [0.0, 1.0]),
]


@pytest.mark.parametrize("logits", [[[1.0, 3.0], [5.0, 6.0]], [[2.0], [1.0]]])
def test_raw_predictions_of_two_classes_are_a_margin(logits: list[list[float]]) -> None:
    """Spark's evaluators rank rows by the second of them."""
    facts = Facts((len(logits[0]),), classifies=True, logits=True)
    made = Scores(None, (), (), ("output",), (), False, "", facts, {}).of(logits)
    assert made["rawPrediction"].numpy().tolist() == [[-2.0, 2.0], [-1.0, 1.0]]
    np.testing.assert_allclose(made["probability"].numpy()[:, 1], 1 / (1 + np.exp([-2.0, -1.0])))


@pytest.mark.parametrize(
    "loss", ["hinge", keras.losses.squared_hinge, keras.losses.Hinge(), "binary_crossentropy", keras.losses.Huber()]
)
def test_losses_of_margins_are_told_from_those_of_probabilities(loss: Any) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    assert gives_logits(model) == ("hinge" in str(getattr(loss, "name", getattr(loss, "__name__", loss))))


@pytest.mark.parametrize(
    "loss",
    [
        [keras.losses.BinaryCrossentropy(from_logits=True)],
        partial(keras.losses.binary_crossentropy, from_logits=True),
        lambda labels, outputs: keras.losses.binary_crossentropy(labels, outputs, from_logits=True),
        keras.losses.Hinge(name="margin"),
    ],
    ids=["in a list", "partial", "own function", "under another name"],
)
def test_outputs_are_logits_whatever_form_a_loss_has_that_takes_them(loss: Any) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    assert gives_logits(model)


def test_an_own_loss_after_a_sigmoid_takes_probabilities() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", lambda labels, outputs: keras.losses.binary_crossentropy(labels, outputs))
    assert not gives_logits(model)


def test_a_stream_is_refused_in_words(df: Any) -> None:
    stream = df.sparkSession.readStream.format("rate").load().selectExpr("double(value) label", "array(1D) features")
    with pytest.raises(UsageError, match="is a stream, which has no end"):
        KerasRegressor(modelFn=linear).fit(stream)


def test_a_class_is_not_made_up_where_the_model_gives_no_number() -> None:
    facts = Facts((3,), classifies=True, classes=(2, 5, 9))
    made = Scores(None, (), (), ("output",), (), False, "", facts, {}).of([[np.nan] * 3, [0.1, 0.8, 0.1]])
    np.testing.assert_array_equal(made["prediction"].numpy(), [np.nan, 5.0])


@pytest.mark.parametrize(("label", "params", "names"), every(len(CLASSES), CLASSES))
def test_classes_are_told_apart(cluster: TFCluster, df: Any, label: str, params: dict[str, Any], names: Any) -> None:
    options = {"labelCol": label, "epochs": 50, "batchSize": 8, "seed": 1, "verbose": 0}
    asked = KerasClassifier(modelFn=classes, modelParams=params, **options)
    fitted = asked.fit(df)
    predicted = fitted.transform(df)
    assert fitted.classes == names
    assert fitted.numClasses == len(names)
    assert "accuracy" in fitted.summary.history
    assert MulticlassClassificationEvaluator(labelCol=label, metricName="accuracy").evaluate(predicted) > 0.8
    if label == "place":
        assert MulticlassClassificationEvaluator(labelCol=label, metricName="logLoss").evaluate(predicted) < 0.5
    row = predicted.select("features", "rawPrediction", "probability", "prediction").first()
    assert sum(row["probability"]) == pytest.approx(1.0)
    assert names[int(np.argmax(row["probability"]))] == row["prediction"] == fitted.predict(row["features"])
    if label == "two":
        assert BinaryClassificationEvaluator(labelCol=label).evaluate(predicted) > 0.9
    assert fitted.evaluate(df)["accuracy"] == pytest.approx(fitted.summary.history["accuracy"][-1], abs=0.2)


@pytest.mark.soak
def test_a_model_is_not_evaluated_on_classes_that_it_does_not_know(cluster: TFCluster, df: Any) -> None:
    fitted = KerasClassifier(modelFn=classes, labelCol="gaps", verbose=0).fit(df)
    with pytest.raises(DataError, match="'gaps' has 4, and the model's classes are 2, 5, 9"):
        fitted.evaluate(df.withColumn("gaps", F.expr("gaps - 1 + int(gaps <> 5)")))


@pytest.mark.soak
def test_a_model_that_is_built_by_its_rows_is_compiled_for_its_classes(cluster: TFCluster, df: Any) -> None:
    fitted = KerasClassifier(modelFn=subclassed, labelCol="place", epochs=30, batchSize=8, seed=1, verbose=0).fit(df)
    assert fitted.classes == [0, 1, 2]
    predicted = fitted.transform(df)
    assert MulticlassClassificationEvaluator(labelCol="place", metricName="accuracy").evaluate(predicted) > 0.8


@pytest.mark.soak
def test_inputs_go_by_name_and_columns_may_be_left_out(cluster: TFCluster, df: Any) -> None:
    inputs = {name: keras.Input((1,), name=name) for name in ("a", "b")}
    model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(keras.layers.Concatenate()(list(inputs.values()))))
    asked = KerasClassifier(model=model, featuresCols=["b", "a"], labelCol="two", epochs=2, verbose=0)
    fitted = asked.setProbabilityCol("").setRawPredictionCol("").setPredictionCol("class").fit(df)
    made = fitted.transform(df)
    assert made.columns == [*df.columns, "class"]
    assert made.first()["class"] == fitted.predict({"a": df.first()["a"], "b": df.first()["b"]})


WRONG: dict[str, tuple[dict[str, Any], type, str]] = {
    "nothing to train": ({}, UsageError, "one of model and modelFn"),
    "no column": ({"modelFn": classes, "labelCol": "lable"}, DataError, "no column 'lable'. Did you mean 'label'"),
    "texts": ({"modelFn": classes, "labelCol": "kind"}, DataError, "'kind' has texts.*StringIndexer"),
    "numbers": ({"modelFn": classes, "labelCol": "a"}, DataError, "'a' has .*whole numbers"),
    "no number": ({"modelFn": classes, "labelCol": "features"}, DataError, "'features' is of .*a class is one number"),
    "too many": (
        {"modelFn": classes, "labelCol": "place", "modelParams": {"outputs": 2}},
        UsageError,
        "has 2 classes",
    ),
    "another task": (
        {"modelFn": classes, "modelParams": {"loss": "mse"}, "labelCol": "place"},
        UsageError,
        "loss mse does not fit a classifier whose model has an output for each class: "
        "take sparse_categorical_crossentropy",
    ),
    "one-hot": (
        {"modelFn": classes, "modelParams": {"loss": "categorical_crossentropy"}, "labelCol": "place"},
        UsageError,
        "one-hot",
    ),
    "text weights": (
        {"modelFn": classes, "labelCol": "two", "weightCol": "kind"},
        DataError,
        "'kind' is to weight rows, but is not numeric",
    ),
    "several columns": (
        {"modelFn": classes, "labelCol": "two", "featuresCols": ["a", "b"]},
        UsageError,
        "has one input, and featuresCols are a, b: put a VectorAssembler",
    ),
    "outputs without a class": (
        {"modelFn": classes, "labelCol": "gaps", "modelParams": {"outputs": 9}},
        UsageError,
        "has 9 classes, and the labels have 3: 2, 5, 9. Give it as many outputs, or put a StringIndexer before",
    ),
    "no model": ({"modelFn": len, "labelCol": "place"}, UsageError, "modelFn gave int"),
    "a column there": (
        {"modelFn": classes, "labelCol": "two", "predictionCol": "kind"},
        UsageError,
        "a column 'kind' already: set predictionCol to another name",
    ),
    "no indicator": (
        {"modelFn": classes, "labelCol": "two", "validationIndicatorCol": "heldd"},
        DataError,
        "no column 'heldd'. Did you mean 'held'",
    ),
    "no booleans": ({"modelFn": classes, "labelCol": "two", "validationIndicatorCol": "a"}, DataError, "booleans"),
    "too large": ({"modelFn": classes, "labelCol": "two", "numWorkers": 3}, Exception, "The cluster has 2 workers"),
}


VALUES: dict[str, tuple[str, str]] = {
    "null": (
        "if(id = 3, null, array(1.0, 2.0, 3.0)) features",
        "'features' has nulls, NaN or infinite numbers in 1 of 9",
    ),
    "nan": ("array(if(id = 3, double('nan'), 1.0D), 2.0D, 3.0D) features", "'features' has nulls, NaN"),
    "sizes": ("if(id = 3, array(1.0), array(1.0, 2.0)) features", "'features' has from 1 to 2 values in a row"),
    "width": ("array(1.0, 2.0) features", "The model takes 3 values for a row, and the features have 2"),
    "label": ("array(1.0, 2.0, 3.0) features, if(id = 3, null, 1) label", "'label' has nulls"),
    "time": ("array(1.0, 2.0, 3.0) features, timestamp'2020-01-01' label", "'label' is of timestamp, and labels are"),
    "text": ("string(id) features", "takes numbers, and the features are texts"),
    "indicator": (
        "array(1.0, 2.0, 3.0) features, if(id = 3, null, id > 5) held",
        "validationIndicatorCol 'held' has nulls",
    ),
    "weight": ("array(1.0, 2.0, 3.0) features, id - 4 weight", "'weight' has weights below zero"),
}


@pytest.mark.parametrize("case", every(6, VALUES))
def test_values_from_which_nothing_can_be_learned_are_refused(cluster: TFCluster, spark: Any, case: str) -> None:
    columns, words = VALUES[case]
    query = f"select {columns}{'' if ' label' in columns else ', id label'} from range(9)"
    given = {"weightCol": "weight"} if "weight" in columns else {}
    if "held" in columns:
        given = {"validationIndicatorCol": "held"}
    with pytest.raises((DataError, UsageError), match=words):
        KerasRegressor(modelFn=linear, verbose=0, **given).fit(spark.sql(query))


def first_label(y: Any, predicted: Any) -> Any:
    return y[0]


@pytest.mark.soak
def test_rows_are_evaluated_in_their_order_and_columns_may_have_any_name(cluster: TFCluster, df: Any) -> None:
    odd = df.withColumnRenamed("features", "its.features").withColumnRenamed("label", "a`label").coalesce(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[first_label])
    fitted = KerasRegressor(model=model, featuresCol="its.features", labelCol="a`label", verbose=0).fit(odd)
    firsts = [row["a`label"] for row in odd.collect()[::32]]
    for _ in range(2):
        assert fitted.evaluate(odd)["first_label"] == pytest.approx(np.mean(firsts), rel=1e-5)
    assert fitted.transform(odd).columns == [*odd.columns, "prediction"]
    assert fitted.transform(odd).where("prediction is null").count() == 0


def test_a_vector_that_is_null_is_refused(cluster: TFCluster, spark: Any) -> None:
    vector = array_to_vector(F.array(*[F.lit(1.0)] * 3))
    df = spark.range(9).select(F.when(F.col("id") != 3, vector).alias("features"), F.col("id").alias("label"))
    with pytest.raises(DataError, match="'features' has nulls, NaN or infinite numbers in 1 of 9"):
        KerasRegressor(modelFn=linear, verbose=0).fit(df)


@pytest.mark.parametrize("case", every(6, WRONG))
def test_what_cannot_be_trained_is_refused_by_name(cluster: TFCluster, df: Any, case: str) -> None:
    given, kind, words = WRONG[case]
    with pytest.raises(kind, match=words):
        KerasClassifier(verbose=0, **given).fit(df)


def test_parameters_are_told_copied_and_refused() -> None:
    asked = KerasClassifier(modelFn=classes, batch_size=7)
    assert asked.getBatchSize() == 7
    assert asked.setEpochs(3).getEpochs() == 3
    assert asked.copy({asked.epochs: 9}).getEpochs() == 9
    assert "validationIndicatorCol" in asked.explainParams()
    with pytest.raises(UsageError, match="batchSize is given in both spellings"):
        KerasClassifier(batch_size=7, batchSize=8)
    with pytest.raises(TypeError, match="give 0 for nothing, or 1"):
        KerasClassifier(verbose=7)
    with pytest.raises(UsageError, match=r"no parameter 'epoch'\. Did you mean 'epochs'"):
        KerasClassifier(epoch=3)
    with pytest.raises(UsageError, match="modelParams are what modelFn makes a model of"):
        KerasClassifier(model=classes({}), modelParams={"outputs": 2}).training(None)
    with pytest.raises(UsageError, match="list is not a Spark DataFrame"):
        KerasClassifier(modelFn=classes).fit([1, 2])
    wrong = {
        "epochs": -1,
        "numWorkers": 0,
        "strategy": "foo",
        "batchSize": "many",
        "callbacks": ["es"],
        "modelParams": [1],
        "modelFn": "classes",
        "model": classes,
    }
    for name, value in wrong.items():
        with pytest.raises(TypeError, match=name):
            KerasClassifier(**{name: value})


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:There is no checkpoint", "ignore:Going on from")
def test_a_fit_goes_on_from_its_own_checkpoints_and_from_those_of_no_other(
    cluster: TFCluster, df: Any, tmp_path: Any
) -> None:
    asked = KerasRegressor(modelFn=linear, epochs=1, checkpointDir=str(tmp_path), resume=True, **PLAIN)
    first, other = asked.fit(df), asked.fit(df.withColumn("label", -F.col("label")))
    assert gap(first.keras, other.keras) > 1e-3
    with pytest.warns(UserWarning, match="Going on from the end of fit 1"):
        more = asked.copy({asked.epochs: 3}).fit(df)
    assert more.summary.history["loss"][:1] == first.summary.history["loss"]
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(UsageError, match="has trained 3 epochs, more than the 2 asked for"):
        asked.copy({asked.epochs: 2}).fit(df)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:There is no checkpoint", "ignore:Going on from")
def test_points_of_a_grid_keep_checkpoints_of_their_own(cluster: TFCluster, df: Any, tmp_path: Any) -> None:
    asked = KerasRegressor(modelFn=linear, epochs=3, checkpointDir=str(tmp_path), resume=True, **PLAIN)
    asked.fit(df)
    grid = [{asked.epochs: 2}, {asked.epochs: 1}]
    lengths = [len(each.summary.history["loss"]) for each in asked.fit(df, grid)]
    assert lengths == [2, 1]


@pytest.mark.soak
def test_a_cluster_is_left_as_it_was_found(cluster: TFCluster, df: Any) -> None:
    """The last of this module: it ends the cluster of the others."""
    asked = KerasRegressor(modelFn=linear, verbose=0)
    asked.fit(df)
    assert SHARED.cluster is cluster
    assert SHARED.running
    SHARED.stop()
    asked.fit(df)
    assert SHARED.cluster is None
    try:
        asked.setKeepCluster(True).fit(df)
        assert SHARED.running
    finally:
        SHARED.stop()
