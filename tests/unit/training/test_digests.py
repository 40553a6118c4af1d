"""Digests tell data apart by values and by order, and are alike where the data are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tfos_magic.training.inputs.digests import LEVELS, apart, of_arrays, of_batch

ROWS = np.random.default_rng(2).normal(size=(40, 3)).astype("float32")
KINDS = {
    "float32": ROWS,
    "float64": ROWS.astype("float64"),
    "float16": ROWS.astype("float16"),
    "int64": (ROWS * 100).astype("int64"),
    "bool": ROWS > 0,
    "string": (ROWS * 100).astype("int64").astype(str).astype(object),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_in_another_order_has_another_digest(kind: str) -> None:
    rows = tf.constant(KINDS[kind])
    digest = float(of_batch((rows, rows[:, 0])))
    assert digest == float(of_batch((tf.identity(rows), rows[:, 0])))
    assert 0 <= digest < LEVELS
    others = [float(of_batch((tf.roll(rows, shift, 0), rows[:, 0]))) for shift in range(1, 6)]
    assert sum(other != digest for other in others) >= 4  # one in 256 is alike by chance


def test_ragged_and_sparse_batches_have_digests() -> None:
    ragged = tf.RaggedTensor.from_row_lengths(ROWS.reshape(-1), [60, 0, 60])
    sparse = tf.sparse.from_dense(ROWS)
    assert float(of_batch(ragged)) != float(of_batch(ragged[::-1]))
    assert float(of_batch(sparse)) != float(of_batch(tf.sparse.from_dense(ROWS[::-1])))


@pytest.mark.parametrize("make", [np.asarray, tf.constant, pd.DataFrame])
def test_arrays_of_other_values_have_another_checksum(make: object) -> None:
    assert callable(make)
    assert of_arrays([make(ROWS)]) == of_arrays([make(ROWS.copy())])
    assert of_arrays([make(ROWS)]) != of_arrays([make(ROWS[::-1])])


def test_large_arrays_are_sampled_all_over() -> None:
    large = np.zeros(12_000_000, "float32")
    moved = large.copy()
    moved[-1] = 1
    assert of_arrays([large]) != of_arrays([moved])


@pytest.mark.parametrize("size", [2, 3, 256])
def test_ranks_are_apart_where_one_has_another_digest(size: int) -> None:
    def sums(digests: list[float]) -> tf.Tensor:
        return tf.constant([np.float32(sum(digests)), np.float32(sum(d * d for d in digests))])

    assert float(apart(sums([LEVELS - 1.0] * size), size)) == 0
    assert float(apart(sums([LEVELS - 1.0] * (size - 1) + [LEVELS - 2.0]), size)) > 0
