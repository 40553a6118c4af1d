"""Losses and means of ``tf_keras`` over the global batch.

A rank's loss counts with the weight of its rows, and so do its gradients. A loss that is no plain mean over rows is
scaled here, so that the mean over ranks, weighted by rows, is the number that one process would have got.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import tensorflow as tf
from tf_keras.src.engine.compile_utils import LossesContainer
from tf_keras.src.losses import Loss
from tf_keras.src.metrics.base_metric import Reduce
from tf_keras.src.utils import losses_utils

from tfos_magic.training import refusals as common
from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.keras_seam.tf_keras import refusals
from tfos_magic.training.rank_session import Session

_NONE, _SUM = losses_utils.ReductionV2.NONE, losses_utils.ReductionV2.SUM
_MEANS = (losses_utils.ReductionV2.AUTO, losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE)


def install(stack: ExitStack, session: Session) -> None:
    """Make losses, and means of one number per batch, global until ``stack`` closes."""
    current: list[Any] = []

    def call(original: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        current.append(loss)
        try:
            return original(loss, *args, **kwargs)
        finally:
            current.pop()

    def reduce(original: Any, losses: Any, sample_weight: Any = None, reduction: Any = _MEANS[0], **rest: Any) -> Any:
        loss = original(losses, sample_weight=sample_weight, reduction=reduction, **rest)
        step = session.exact_step
        if step is None or not current:
            return loss
        if reduction == _NONE:
            if any(isinstance(outer, LossesContainer) for outer in current):
                refusals.refuse("a compiled loss without a reduction")
            return loss
        common.check_loss(current[-1], losses, session.reporter)
        scaled = reduction == _SUM and len(losses.shape) > 0
        return tf.math.multiply_no_nan(loss, tf.cast(step.scale(), loss.dtype)) if scaled else loss

    def weigh(original: Any, losses: Any, sample_weight: Any, mask: Any, reduction: Any) -> Any:
        step = session.exact_step
        if step is None or mask is None or reduction not in _MEANS:
            return original(losses, sample_weight, mask, reduction)
        mask = tf.cast(mask, losses.dtype)
        # As tf_keras has it, all entries over valid ones: here those of all ranks, for a mean over this rank's rows.
        valid = tf.cast(step.summed(tf.reduce_sum(mask)), losses.dtype)
        ratio = tf.cast(tf.size(mask), losses.dtype) * tf.cast(step.scale(), losses.dtype) / valid
        return losses_utils.apply_mask(losses, sample_weight, mask * ratio)

    def update(original: Any, metric: Any, values: Any, sample_weight: Any = None) -> Any:
        step = session.exact_step
        if step is None or sample_weight is not None or isinstance(values, tf.RaggedTensor):
            return original(metric, values, sample_weight=sample_weight)
        values = tf.convert_to_tensor(values)
        if values.shape.rank != 0:
            return original(metric, values, sample_weight=sample_weight)
        # One number per batch counts by this rank's part of the batch: together the ranks count it once.
        common.note_batch_metric(metric, session.reporter)
        return original(metric, values, sample_weight=tf.math.divide_no_nan(step.rows, step.total()))

    wrap(stack, LossesContainer, "__call__", call)
    wrap(stack, Loss, "__call__", call)
    wrap(stack, losses_utils, "compute_weighted_loss", reduce)
    wrap(stack, losses_utils, "apply_valid_mask", weigh)
    wrap(stack, Reduce, "update_state", update)
