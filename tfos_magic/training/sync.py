"""Strategy ``sync``: every step is the step of one plain process on the global batch.

Each rank computes the gradient of its own rows; their mean, weighted by the number of rows, is the gradient of the
global batch for every loss that is a mean over rows. That is data-parallel SGD as in MaTEx, Horovod and Poseidon.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import tensorflow as tf

from tfos_magic.training import fused
from tfos_magic.training.context import RunContext
from tfos_magic.training.step import Step
from tfos_magic.training.strategy import Update

_HALF = (tf.float16, tf.bfloat16)


class SyncStrategy:
    """Averages gradients over ranks before the local optimizer sees them."""

    name: ClassVar[str] = "sync"
    exact: ClassVar[bool] = True

    def __init__(self, context: RunContext) -> None:
        self._collectives = context.collectives

    def begin(self, model: Any) -> None:
        """Nothing to prepare."""

    def begin_epoch(self, epoch: int) -> None:
        """Nothing to prepare."""

    def settle(self, model: Any) -> None:
        """Nothing to do: every step left the ranks equal."""

    def end(self, model: Any) -> None:
        """Nothing to do."""

    def apply(self, step: Step, gradients: Sequence[Any], variables: Sequence[Any], update: Update) -> None:
        """Let the optimizer of every rank take the step of the global batch."""
        with ExitStack() as stack:
            fused.install(stack)
            update(self.combine(step, gradients), variables)

    def combine(self, step: Step, gradients: Sequence[Any]) -> list[Any]:
        """Give the gradients of the global batch; None stays None, sparse gradients stay sparse.

        The ballot of the step and its row count travel in the same bucket as the small gradients. A rank without rows
        counts with weight zero, whatever its gradients are.
        """
        dense = [i for i, g in enumerate(gradients) if g is not None and not isinstance(g, tf.IndexedSlices)]
        weighted = [_weighted(gradients[i], step.rows) for i in dense]
        *summed, tally = self._collectives.all_reduce([*weighted, tf.concat([[step.rows], step.ballot], 0)])
        step.counted(tally[1:])
        combined = list(gradients)
        for i, gradient in zip(dense, summed, strict=True):
            combined[i] = _mean(gradient, tally[0], gradients[i].dtype)
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                combined[i] = self._combine_slices(gradient, step.rows, tally[0])
        return combined

    def _combine_slices(self, gradient: tf.IndexedSlices, rows: tf.Tensor, total: tf.Tensor) -> tf.IndexedSlices:
        """Bring the slices of all ranks together, one by one and in order: what Keras's optimizers make of an index
        that occurs twice differs from what they make of its sum. What TensorFlow summed by index already stays so."""
        values, indices = self._collectives.concat([_weighted(gradient.values, rows), gradient.indices])
        if _are_unique(gradient.indices):
            indices, places = tf.unique(indices)
            values = tf.math.unsorted_segment_sum(values, places, tf.size(indices))
        return tf.IndexedSlices(_mean(values, total, gradient.dtype), indices, gradient.dense_shape)


def _are_unique(indices: tf.Tensor) -> bool:
    """Whether the graph makes ``indices`` by ``tf.unique``, as the lookup of sparse rows does."""
    if tf.executing_eagerly():
        return False
    operation = indices.op
    while operation.type in ("Reshape", "Identity", "Cast"):
        operation = operation.inputs[0].op
    return str(operation.type).startswith("Unique")


def _weighted(gradient: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    exact = tf.cast(gradient, tf.float32) if gradient.dtype in _HALF else gradient
    return tf.math.multiply_no_nan(exact, tf.cast(rows, exact.dtype))


def _mean(weighted: tf.Tensor, total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.math.divide_no_nan(weighted, tf.cast(total, weighted.dtype)), dtype)
