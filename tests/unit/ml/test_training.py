"""What an estimator's workers make of labels, in this process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfos_magic.errors import UsageError
from tfos_magic.ml.fit_on_workers import REGRESS, FitJob, evaluate, fit

pytestmark = pytest.mark.slow

X = np.arange(24.0).reshape(12, 2)


def _data(y: Any, *weight: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, y, *weight)).batch(4)


def _asked(loss: Any, metrics: Any = (), kind: str = REGRESS, outputs: int = 1) -> FitJob:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(outputs, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(1e-4), loss, metrics=list(metrics))
    return FitJob(kind, model, None, {}, 1)


def apart(y: Any, predicted: Any) -> Any:
    return keras.ops.sqrt(keras.ops.mean((y - predicted) ** 2))


def test_doubles_of_spark_are_the_numbers_that_keras_makes_of_arrays() -> None:
    y, weights = X.sum(1, keepdims=True) + 1, np.linspace(0.5, 1.5, 12)
    model, history, facts = fit(_asked("mse", [apart]), _data(y, weights))
    plain = _asked("mse", [apart]).model
    expected = plain.fit(X, y, sample_weight=weights, batch_size=4, shuffle=False, verbose=0).history
    assert history["apart"] == pytest.approx(expected["apart"])
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-6)
    assert evaluate(model, facts, _data(y))["apart"] == pytest.approx(
        plain.evaluate(X, y, batch_size=4, verbose=0, return_dict=True)["apart"]
    )


@pytest.mark.parametrize(
    ("loss", "kind", "outputs", "labels", "told"),
    [
        ("mse", REGRESS, 1, (2,), "2 numbers for a row, and the model gives one number"),
        (keras.losses.Huber(), "", 1, (2,), "2 numbers for a row, and the model gives one number"),
        (keras.losses.mean_absolute_error, "", 3, (4,), "4 numbers for a row, and the model gives 3 numbers"),
        ("mean_squared_error", "", 4, (), "one number for a row, and the model gives 4 numbers"),  # as rows in a batch
        ("mse", "", 2, (1, 2), r"numbers of shape \(1, 2\) for a row, and the model gives 2 numbers"),
    ],
)
def test_labels_have_the_shape_of_the_outputs(
    loss: Any, kind: str, outputs: int, labels: tuple[int, ...], told: str
) -> None:
    with pytest.raises(UsageError, match=f"Column 'label' has {told}"):
        fit(_asked(loss, kind=kind, outputs=outputs), _data(np.ones((12, *labels))))


@pytest.mark.parametrize(("outputs", "labels"), [(1, ()), (1, (1,)), (3, (3,)), (3, (3, 1))])
def test_labels_of_the_shape_of_the_outputs_are_taken(outputs: int, labels: tuple[int, ...]) -> None:
    _, history, _ = fit(_asked("mse", kind="", outputs=outputs), _data(np.ones((12, *labels))))
    assert np.isfinite(history["loss"]).all()


def test_labels_of_classes_are_one_for_several_outputs() -> None:
    asked = _asked("sparse_categorical_crossentropy", kind="", outputs=3)
    _, history, _ = fit(asked, _data(np.arange(12) % 3))
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize("kind", [REGRESS, ""])
def test_a_loss_of_the_users_own_takes_what_labels_it_likes(kind: str) -> None:
    def weighed(y: Any, predicted: Any) -> Any:
        return y[:, 1] * (y[:, 0] - predicted[:, 0]) ** 2

    _, history, _ = fit(_asked(weighed, kind=kind), _data(np.ones((12, 2))))
    assert np.isfinite(history["loss"]).all()
