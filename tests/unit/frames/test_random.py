"""Random numbers: a stream for each partition, the same ones again where there is a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tfos_magic.frames as tfs
from tfos_magic.errors import UsageError

FRAME = pd.DataFrame({"x": np.zeros(500)})
NOISY = keras.Sequential([keras.Input((1,)), keras.layers.GaussianNoise(1.0, seed=3)])
SEEDED = {
    "an operation": lambda x: {"z": x + tf.random.uniform(tf.shape(x), seed=7, dtype=tf.float64)},
    "a Keras layer": lambda x: {"z": tf.squeeze(NOISY(tf.cast(x, tf.float32)[:, None], training=True), 1)},
}
UNSEEDED = {
    "an operation": lambda x: {"z": x + tf.random.uniform(tf.shape(x), dtype=tf.float64)},
    "Keras": lambda x: {"z": x + keras.random.uniform(tf.shape(x), dtype="float64")},
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """What a function draws in the partition of a number, in five blocks."""

    def draw(function: Any, partition: int, mapped: Any = tfs.map_blocks, **options: Any) -> list[float]:
        monkeypatch.setattr("tfos_magic.frames.spark_tasks._partition", lambda: partition)
        return mapped(function, FRAME, block_rows=100, **options)["z"].tolist()

    return draw


@pytest.mark.parametrize("xla", [None, True])
@pytest.mark.parametrize("case", SEEDED)
def test_seeded_numbers_differ_between_partitions_and_come_again(drawn: Any, case: str, xla: bool | None) -> None:
    one, other = drawn(SEEDED[case], 0, xla=xla), drawn(SEEDED[case], 1, xla=xla)
    assert len({*one, *other}) == 1000
    assert drawn(SEEDED[case], 0, xla=xla) == one
    assert drawn(SEEDED[case], 1, xla=xla) == other


@pytest.mark.parametrize("case", UNSEEDED)
def test_unseeded_numbers_differ_between_partitions(drawn: Any, case: str) -> None:
    assert len({*drawn(UNSEEDED[case], 0), *drawn(UNSEEDED[case], 1)}) == 1000


def test_rows_draw_numbers_of_their_own(drawn: Any) -> None:
    function = lambda x: {"z": x + tf.random.uniform([], seed=7, dtype=tf.float64)}  # noqa: E731 - as users write it
    assert len({*drawn(function, 0, tfs.map_rows), *drawn(function, 1, tfs.map_rows)}) == 1000


def test_constant_seeds_that_would_repeat_in_every_block_are_refused(drawn: Any) -> None:
    with pytest.raises(UsageError, match="constant seed, so every block would have the same"):
        drawn(lambda x: {"z": x + tf.random.stateless_uniform(tf.shape(x), [1, 2], dtype=tf.float64)}, 0)
    same = lambda x: {"z": x + tf.random.stateless_uniform([2], [1, 2], dtype=tf.float64)[0]}  # noqa: E731
    assert len({*drawn(same, 0), *drawn(same, 1)}) == 1


def test_seeds_in_a_function_traced_before_are_refused_where_they_would_repeat(drawn: Any) -> None:
    @tf.function(autograph=False)
    def noise(rows: Any) -> Any:
        return tf.random.uniform(rows, seed=3, dtype=tf.float64)

    with pytest.raises(UsageError, match="take that decorator off"):
        drawn(lambda x: {"z": x + noise(tf.shape(x))}, 1)
