"""The rows on which a step is tried before it is taken."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfos_magic.training.firststep.batches import filled, tried


def test_the_least_and_the_largest_rows_are_among_the_few() -> None:
    x = np.random.default_rng(0).normal(size=(500, 3)).astype("float32")
    x[123], x[321] = 50.0, -50.0
    y = np.zeros(500, "int32")
    y[77] = 9
    rows = tried((tf.constant(x), tf.constant(y)))
    features, labels = (leaf.numpy() for leaf in rows.whole[0])
    assert {50.0, -50.0} <= set(features[:, 0])
    assert 9 in labels
    first, second = rows.parts
    assert min(first[1], second[1]) > 1
    assert first[1] + second[1] == rows.whole[1] == len(features) < 16
    assert sorted(np.concatenate([part[0][1].numpy() for part in rows.parts])) == sorted(labels)


def test_whole_numbers_need_no_filling() -> None:
    rows = tried((tf.constant([[1, 0], [2, 3], [0, 0], [4, 1]]), tf.constant([0, 1, 0, 2])))
    assert filled(rows) is rows


def test_what_is_zero_or_missing_is_filled() -> None:
    rows = tried((tf.constant([[1, 0], [2, 3], [0, 0], [4, 1]]), tf.constant([0, 0, 0, 0]), tf.zeros([4, 2])))
    tokens, labels, features = filled(rows).whole[0]
    assert tokens is rows.whole[0][0]
    assert set(labels.numpy()) == {1}
    assert (features.numpy() >= 0.5).all()
    missing = tried((tf.constant([[1], [2], [3], [4]]), tf.constant([-1, 0, 2, -1])))
    assert filled(missing).whole[0][1].numpy().min() == 0
