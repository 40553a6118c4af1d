"""Fused updates are the updates that Keras writes out."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")

import tensorflow as tf  # noqa: E402

from tfos_magic.training.keras_seam import fused_optimizers  # noqa: E402

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "scheduled": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)),
    "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
}


STEPS = 50


def _updated(optimizer: Any, dtype: str) -> list[np.ndarray]:
    """The variables of a model and of its optimizer after ``STEPS`` steps on given gradients."""
    random = np.random.default_rng(2)
    variables = [keras.Variable(random.normal(size=(6, 3)).astype(dtype)) for _ in range(2)]
    step = tf.function(lambda *gradients: optimizer.apply(list(gradients), variables), autograph=False)
    optimizer.build(variables)
    for _ in range(STEPS):
        step(*(tf.constant(random.normal(size=(6, 3)).astype(dtype)) for _ in range(2)))
    return [v.numpy() for v in [*variables, *optimizer.variables]]


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_updates_equal_those_of_keras(name: str, dtype: str, rounding: float) -> None:
    expected = _updated(OPTIMIZERS[name](), dtype)
    with ExitStack() as stack:
        fused_optimizers.install(stack)
        got = _updated(OPTIMIZERS[name](), dtype)
    for mine, plain in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=rounding, atol=rounding)


def test_the_fused_kernel_takes_the_step_and_keras_is_itself_afterwards() -> None:
    before = vars(keras.optimizers.Adam)["update_step"]
    variable = keras.Variable(np.zeros((2, 2), "float32"))
    optimizer = keras.optimizers.Adam()
    optimizer.build([variable])
    with ExitStack() as stack:
        fused_optimizers.install(stack)
        graph = tf.function(lambda g: optimizer.apply([g], [variable]), autograph=False).get_concrete_function(
            tf.TensorSpec((2, 2))
        )
        assert "ResourceApplyAdam" in {operation.type for operation in graph.graph.get_operations()}
    assert vars(keras.optimizers.Adam)["update_step"] is before
