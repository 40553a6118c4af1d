"""Strategy ``sync``: every step is the step of one plain process on the global batch.

Each rank computes the gradient of its own rows; their mean, weighted by the number of rows, is the gradient of the
global batch for every loss that is a mean over rows. That is data-parallel SGD as in MaTEx, Horovod and Poseidon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfos_magic.training.collectives import Collectives
from tfos_magic.training.step import Step

_HALF = (tf.float16, tf.bfloat16)


class SyncStrategy:
    """Averages gradients over ranks before the local optimizer sees them."""

    name = "sync"
    shards_batches = True

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def combine(self, step: Step, gradients: Sequence[Any]) -> list[Any]:
        """Give the gradients of the global batch; None stays None, sparse gradients come back dense.

        The ballot of the step and its row count travel in the same bucket as the small gradients. A rank without rows
        counts with weight zero, whatever its gradients are.
        """
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        weighted = [_weighted(gradients[i], step.rows) for i in present]
        ballot = tf.concat([[step.rows], step.ballot], 0)
        *summed, tally = self._collectives.all_reduce([*weighted, ballot])
        step.counted(tally[1:])
        total = tally[0]
        combined = list(gradients)
        for i, gradient in zip(present, summed, strict=True):
            mean = tf.math.divide_no_nan(gradient, tf.cast(total, gradient.dtype))
            combined[i] = tf.cast(mean, gradients[i].dtype)
        return combined


def _weighted(gradient: Any, rows: tf.Tensor) -> tf.Tensor:
    dense = tf.convert_to_tensor(gradient)
    if dense.dtype in _HALF:
        dense = tf.cast(dense, tf.float32)
    return tf.math.multiply_no_nan(dense, tf.cast(rows, dense.dtype))
