"""A block of one row: TensorFlow's parallel for would lose its dimension wherever a function squeezes."""

from __future__ import annotations

import pandas as pd
import pytest
import tensorflow as tf

import tfos_magic.frames as tfs


def frame_of(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"v": [[3.0, 4.0]] * rows})


@pytest.mark.parametrize("rows", [1, 2])
def test_a_row_is_mapped_as_among_others(rows: int) -> None:
    zeros = tf.zeros((2, 2), tf.float64)
    made = tfs.map_rows(
        lambda v: {"norm": tf.norm(v), "sum": tf.ensure_shape(tf.squeeze(v[tf.newaxis]) + zeros, (2, 2))},
        frame_of(rows),
    )
    assert made["norm"].tolist() == [5.0] * rows
    assert [[list(line) for line in cell] for cell in made["sum"]] == [[[3.0, 4.0], [3.0, 4.0]]] * rows


@pytest.mark.parametrize("rows", [2, 3, 4])
def test_a_pair_is_reduced_as_among_others(rows: int) -> None:
    summed = tfs.reduce_rows(lambda v_1, v_2: {"v": v_1 + v_2 / tf.norm(v_2) * tf.norm(v_2)}, frame_of(rows))
    assert summed.tolist() == [3.0 * rows, 4.0 * rows]
