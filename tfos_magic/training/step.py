"""One training or test step while it is traced: how many rows it has, and what the ranks decide in it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import data_adapter_utils


class Step:
    """A step of one rank.

    ``rows`` is a float32 scalar tensor, the rows of this rank in the step. ``ballot`` is this rank's vote, a float32
    tensor of shape (2,): stop the run, end the training. ``counted`` stores the sum of all votes in ``tally``.
    """

    def __init__(self, rows: tf.Tensor, ballot: tf.Tensor, tally: tf.Variable) -> None:
        self.rows = rows
        self.ballot = ballot
        self.has_voted = False
        self._tally = tally

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
