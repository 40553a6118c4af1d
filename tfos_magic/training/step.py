"""One training or test step while it is traced: how many rows it has, and what the ranks decide in it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import data_adapter_utils

from tfos_magic.training.collectives import Collectives


class Step:
    """A step of one rank.

    ``rows`` is a float32 scalar tensor, the rows of this rank in the step. ``ballot`` is this rank's vote, a float32
    tensor of shape (2,): stop the run, end the training. ``counted`` stores the sum of all votes in ``tally``.
    """

    def __init__(self, rows: tf.Tensor, ballot: tf.Tensor, tally: tf.Variable, collectives: Collectives) -> None:
        self.rows = rows
        self.ballot = ballot
        self.has_voted = False
        self._tally = tally
        self._collectives = collectives
        self._total: tf.Tensor | None = None

    def total(self) -> tf.Tensor:
        """Rows of the global batch, a float32 scalar: an all-reduce of its own, for what needs it before gradients."""
        if self._total is None:
            tally = self._collectives.all_reduce([tf.concat([[self.rows], self.ballot], 0)])[0]
            self.counted(tally[1:])
            self._total = tally[0]
        return self._total

    def counted(self, votes: tf.Tensor) -> None:
        self.has_voted = True
        self._tally.assign(votes)


def rows_in(data: Any) -> tf.Tensor:
    """Number of rows of a Keras batch ``x``, ``(x, y)`` or ``(x, y, weights)``, as an int64 scalar tensor."""
    x = data_adapter_utils.unpack_x_y_sample_weight(data)[0]
    leaf = next(leaf for leaf in tree.flatten(x) if leaf is not None)
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, tf.int64)[0]


def with_stand_in(data: Any, rows: tf.Tensor) -> Any:
    """Give ``data`` back, or one row of zeros in its place where it has none.

    Not every operation gives an empty batch the right shape (a fused convolution does not), so a rank without rows
    computes on a stand-in, and what comes of it counts with weight zero. Sparse and ragged data are left as they are.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if _is_batch(leaf)]
    if any(isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in tf.nest.flatten(data)):
        return data
    filled = tf.cond(rows > 0, lambda: leaves, lambda: [_zero_row(leaf) for leaf in leaves])
    for leaf, whole in zip(leaves, filled, strict=True):
        whole.set_shape([None, *leaf.shape[1:]])
    rest = iter(filled)
    return tf.nest.map_structure(lambda leaf: next(rest) if _is_batch(leaf) else leaf, data)


def _is_batch(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0


def _zero_row(leaf: tf.Tensor) -> tf.Tensor:
    shape = tf.concat([[1], tf.shape(leaf)[1:]], 0)
    return tf.fill(shape, "") if leaf.dtype == tf.string else tf.zeros(shape, leaf.dtype)
