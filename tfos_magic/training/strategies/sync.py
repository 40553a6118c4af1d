"""Strategy ``sync``: every step is the step of one plain process on the global batch.

Each rank computes the gradient of its own rows; their mean, weighted by the number of rows, is the gradient of the
global batch for every loss that is a mean over rows. That is data-parallel SGD as in MaTEx, Horovod and Poseidon.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import tensorflow as tf

from tfos_magic.training.context import RunContext
from tfos_magic.training.inputs.digests import apart
from tfos_magic.training.keras_seam import fused_optimizers
from tfos_magic.training.step import Step
from tfos_magic.training.strategies import sparse_gradients
from tfos_magic.training.strategies.strategy import Update


class SyncStrategy:
    """Averages gradients over ranks before the local optimizer sees them.

    Options: ``bucket_mb``, the size of a bucket of gradients in MiB, and ``compression``, ``none`` or the 16-bit dtype
    in which float32 gradients travel. They are added in float32 and have the same bits on all ranks, but each is
    rounded once and their mean once more: together an error of at most 2^-10 of the largest term for float16, which
    overflows beyond 65504 and loses what is below 6e-8, and 2^-7 for bfloat16, which has float32's range. With
    ``per_worker_batches`` each worker's rows are a batch of their own, as Horovod and DDP have it: what a step computes
    over its batch, and BatchNormalization's moments, are those of these rows.
    """

    name: ClassVar[str] = "sync"
    lockstep: ClassVar[bool] = True

    def __init__(self, context: RunContext) -> None:
        self._collectives = context.collectives
        self.exact = not context.options.per_worker_batches
        self._bucket_bytes = max(1, int(context.options.bucket_mb * (1 << 20)))
        compression = context.options.compression
        self._wire_dtype = None if compression == "none" else tf.as_dtype(compression)

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
            fused_optimizers.install(stack)
            update(gradients if step.united else self.combine(step, gradients), variables)

    def combine(self, step: Step, gradients: Sequence[Any]) -> list[Any]:
        """Give the gradients of the global batch; None stays None, sparse gradients stay sparse.

        They travel in buckets, the last layers' first, as the backward pass makes them: a bucket leaves while the rest
        is computed (Li et al. 2020). The vote of the step and its row count travel in the first bucket. A rank
        without rows counts with weight zero, whatever its gradients are.
        """
        dense = [i for i, g in enumerate(gradients) if g is not None and not isinstance(g, tf.IndexedSlices)]
        combined = list(gradients)
        vote_sum: Any = None
        for bucket in plan_buckets([(i, gradients[i]) for i in reversed(dense)], self._bucket_bytes) or [[]]:
            digests = [step.digest, tf.square(step.digest)]
            votes = [tf.concat([[step.rows], step.vote, digests], 0)] if vote_sum is None else []
            packed = [self._compressed(gradients[i]) for i in bucket]
            means = self._collectives.mean(packed, step.rows, votes)
            vote_sum = means[-1] if vote_sum is None else vote_sum
            for i, mean in zip(bucket, means, strict=False):
                combined[i] = tf.cast(mean, gradients[i].dtype)
        step.counted(vote_sum[1:3], apart(vote_sum[3:], self._collectives.size))
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                combined[i] = sparse_gradients.combine(self._collectives, gradient, step.rows, vote_sum[0], step.copied)
        return combined

    def _compressed(self, gradient: tf.Tensor) -> tf.Tensor:
        if gradient.dtype in sparse_gradients.HALF:
            return tf.cast(gradient, tf.float32) if self._wire_dtype is None else gradient
        compress = gradient.dtype == tf.float32 and self._wire_dtype is not None
        return tf.cast(gradient, self._wire_dtype) if compress else gradient


def plan_buckets(tensors: Sequence[tuple[int, tf.Tensor]], bucket_bytes: int) -> list[list[int]]:
    """Group numbered tensors, in their order, into buckets that are closed when they reach ``bucket_bytes``."""
    buckets: list[list[int]] = []
    room = 0
    for number, tensor in tensors:
        if room <= 0:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(number)
        room -= (tensor.shape.num_elements() or 0) * tensor.dtype.size
    return buckets
