"""Models on another device than the one where gradients are summed. Logical CPUs of TensorFlow stand for GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.training.conftest import succeeded
from tests.training.harness import Group

TWO_DEVICES = """
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""
CELL = """
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(26, 4)).astype("float32")
y = x.sum(1, keepdims=True)
with tf.device(f"CPU:{device}"):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=eager)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
weights = model.get_weights()
devices = sorted({variable.value.device for variable in model.trainable_variables})
"""


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    made = Group(2, prepare=TWO_DEVICES)
    yield made
    made.close()


@pytest.mark.soak
@pytest.mark.parametrize(("strategy", "eager"), [("sync", False), ("sync", True), ("local", False), ("local", True)])
def test_gradients_come_to_the_host_and_back_wherever_the_model_is(group: Group, strategy: str, eager: bool) -> None:
    given = {
        "strategy": strategy,
        "options": {"sync_every": 2} if strategy == "local" else {},
    }
    elsewhere, here = (
        succeeded(group.run(CELL, "weights", "devices", inputs={"device": device, "eager": eager}, **given))
        for device in (1, 0)
    )
    assert [outcome.values["devices"] for outcome in elsewhere] == [
        ["/job:localhost/replica:0/task:0/device:CPU:1"]
    ] * 2
    for one, other in zip(elsewhere, here, strict=True):
        for mine, theirs in zip(one.values["weights"], other.values["weights"], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)
