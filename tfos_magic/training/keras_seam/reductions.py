"""What is computed over a batch is computed over the global batch: losses, BatchNormalization, means of a step.

A rank's loss counts with the weight of its rows, and so do its gradients. A loss that is no plain mean over rows is
scaled here, so that the mean over ranks, weighted by rows, is the number that one process would have got.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.losses import loss as loss_module
from keras.src.trainers.compile_utils import CompileLoss

from tfos_magic.training import refusals
from tfos_magic.training.firststep.step_trial import TrialStep
from tfos_magic.training.gathered.rows import number_follows_from, with_value_per_row
from tfos_magic.training.keras_seam.batch_normalization import global_moments
from tfos_magic.training.keras_seam.own_loops.tape_loop import OwnLoop
from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.rank_session import Session
from tfos_magic.training.step import Step

_OVERLAPS = (keras.losses.Dice, keras.losses.Tversky)
_MEANS = ("sum_over_batch_size", "mean")


def install(stack: ExitStack, session: Session, own_loop: OwnLoop) -> None:
    """Make the reductions of a step global until ``stack`` closes."""
    _install_losses(stack, session, own_loop)

    def moments(original: Any, layer: Any, inputs: Any, mask: Any) -> Any:
        step = session.exact_step or own_loop.batch_step
        if step is None:
            return original(layer, inputs, mask)
        return step.decided(lambda: global_moments(layer, inputs, mask, step))

    def update(original: Any, metric: Any, values: Any, sample_weight: Any = None) -> Any:
        if session.exact_step is None:
            return original(metric, *_of_share(own_loop, metric, values, sample_weight))
        return original(metric, *_batch_mean(session, metric, values, sample_weight))

    def update_of_function(original: Any, metric: Any, *args: Any, **kwargs: Any) -> Any:
        step = session.exact_step
        if step is None or not callable(metric._fn):
            return original(metric, *args, **kwargs)
        with session.first_step.gathered.metric(metric, step):
            return original(metric, *args, **kwargs)

    wrap(stack, keras.layers.BatchNormalization, "_moments", moments)
    wrap(stack, keras.metrics.MeanMetricWrapper, "update_state", update_of_function)
    for metric_type in (keras.metrics.Mean, keras.metrics.Sum):
        wrap(stack, metric_type, "update_state", update)


def _install_losses(stack: ExitStack, session: Session, own_loop: OwnLoop) -> None:
    calls: list[tuple[Any, tuple[Any, ...]]] = []

    def call(original: Any, loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        step, arguments = session.exact_step, (y_true, y_pred, sample_weight)
        calls.append((loss, arguments))
        try:
            if step is None or isinstance(loss, (CompileLoss, *_OVERLAPS)):
                return original(loss, *arguments)
            return session.first_step.gathered.call(partial(original, loss), loss, arguments, step)
        finally:
            calls.pop()

    def call_all(original: Any, compiled: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Heed losses whose class has a ``__call__`` of its own, too."""
        parts = compiled._flat_losses
        if session.exact_step is None or not any(_calls_itself(part.loss) for part in parts or ()):
            return call(original, compiled, y_true, y_pred, sample_weight)
        compiled._flat_losses = [
            part._replace(loss=partial(call, _itself, part.loss)) if _calls_itself(part.loss) else part
            for part in parts
        ]
        try:
            return call(original, compiled, y_true, y_pred, sample_weight)
        finally:
            compiled._flat_losses = parts

    def reduce(original: Any, values: Any, sample_weight: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        reduction = kwargs.get("reduction", "sum_over_batch_size")
        step = session.exact_step or own_loop.batch_step
        by_count = False
        gathered, is_mean = session.first_step.gathered, mask is None and reduction in _MEANS
        if step is not None and is_mean and gathered.may_drop_rows(calls[-1][0], values, step):
            by_count = number_follows_from(values, calls[-1][1])
            values = values if by_count else with_value_per_row(values, step, calls[-1][0])
        reduced = original(values, sample_weight=sample_weight, mask=mask, **kwargs)
        gathered.note(values)
        if step is None or gathered.at_work:
            return reduced
        if not isinstance(step, TrialStep):  # which finds that it is to be gathered
            refusals.refuse_circle(calls[-1][0])
        if len(getattr(values, "shape", (None,))) == 0:
            if isinstance(calls[-1][0], _OVERLAPS) and reduction not in (None, "none"):
                if sample_weight is None and mask is None:
                    return reduced
                # One number for all rows times the mean, or the sum, of the weights of all rows.
                weight = original(tf.ones_like(values), sample_weight=sample_weight, mask=mask, **kwargs)
                weight = _of_all_rows(_globalised(weight, values, sample_weight, mask, reduction, step), step)
                return tf.cast(values, weight.dtype) * weight
            if session.exact_step is None:
                return _of_all_rows(reduced, step)
            return session.first_step.scaled("loss", calls[-1][0], reduced, step)
        if reduction in (None, "none"):
            compiled = any(isinstance(loss, CompileLoss) for loss, _ in calls)
            return _with_gradient_scaled(reduced, step) if compiled else reduced
        if by_count:  # rows that are left out, as masked ones, make other means on each rank
            factor = _part(tf.cast(tf.size(values), _exact(reduced.dtype)), step)
            reduced = tf.math.multiply_no_nan(reduced, tf.cast(factor, reduced.dtype))
        else:
            reduced = _globalised(reduced, values, sample_weight, mask, reduction, step)
        return reduced if session.exact_step is not None else _of_all_rows(reduced, step)

    def overlap(original: Any, loss: Any, y_true: Any, y_pred: Any) -> Any:
        step = session.exact_step or own_loop.batch_step
        if step is None or loss.axis is not None:
            return original(loss, y_true, y_pred)
        return _overlap(loss, y_true, y_pred, step)

    def add(original: Any, layer: Any, loss: Any) -> None:
        step = session.exact_step
        if step is not None:
            loss = tree.map_structure(lambda leaf: session.first_step.scaled("added", layer, leaf, step), loss)
        original(layer, loss)

    wrap(stack, keras.Layer, "add_loss", add)

    def average(original: Any, losses: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Any:
        average, step = original(losses, sample_weight, global_batch_size), own_loop.batch_step
        if step is None or global_batch_size is None:
            return average
        return _of_all_rows(tf.math.multiply_no_nan(average, tf.cast(step.scale(), average.dtype)), step)

    wrap(stack, tf.nn, "compute_average_loss", average)
    wrap(stack, loss_module.Loss, "__call__", call)
    wrap(stack, CompileLoss, "__call__", call_all)
    wrap(stack, loss_module, "reduce_weighted_values", reduce)
    for loss_type in _OVERLAPS:
        wrap(stack, loss_type, "call", overlap)


def _calls_itself(loss: Any) -> bool:
    return isinstance(loss, loss_module.Loss) and type(loss).__call__ not in (
        loss_module.Loss.__call__,
        CompileLoss.__call__,
    )


def _itself(loss: Any, *arguments: Any) -> Any:
    return loss(*arguments)


def _globalised(reduced: tf.Tensor, values: Any, sample_weight: Any, mask: Any, reduction: str, step: Step) -> Any:
    """Scale a rank's loss to what its rows contribute to the loss of the global batch, over their share of it."""
    if reduction == "sum":
        factor = step.scale()
    elif mask is not None and reduction in _MEANS:
        factor = _part(tf.reduce_sum(tf.cast(mask, _exact(reduced.dtype))), step)
    elif reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
        weights = loss_module.apply_mask(sample_weight, mask, dtype=reduced.dtype, reduction=reduction)
        factor = _part(tf.reduce_sum(tf.cast(weights, _exact(reduced.dtype))), step)
    else:
        return reduced
    return tf.math.multiply_no_nan(reduced, tf.cast(factor, reduced.dtype))


def _part(weight: tf.Tensor, step: Step) -> tf.Tensor:
    """Turn a mean by this rank's ``weight`` into its part of the mean by the weight of all ranks."""
    total = tf.cast(step.summed(weight), weight.dtype)
    return tf.math.divide_no_nan(weight, total) * tf.cast(step.scale(), weight.dtype)


def _exact(dtype: Any) -> tf.DType:
    """The dtype in which parts of ``dtype`` are weighed."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _of_all_rows(loss: tf.Tensor, step: Step) -> tf.Tensor:
    """The loss of the global batch, with the gradient of this rank's: a cell that trains by itself sees the same number
    on every rank, also where it has no rows."""

    @tf.custom_gradient
    def shown(local_loss: tf.Tensor) -> Any:
        exact = _exact(local_loss.dtype)
        weighted = step.summed(tf.math.multiply_no_nan(tf.cast(local_loss, exact), tf.cast(step.rows, exact)))
        mean = tf.math.divide_no_nan(weighted, tf.cast(step.total(), exact))
        return tf.cast(mean, local_loss.dtype), lambda upstream: upstream

    return shown(tf.reduce_sum(loss))  # Keras leaves losses of no rows as they are


def _with_gradient_scaled(values: tf.Tensor, step: Step) -> tf.Tensor:
    """Leave ``values`` as they are; Keras takes the gradient of their sum, and their mean for the history."""

    @tf.custom_gradient
    def scaled(local_values: tf.Tensor) -> Any:
        return local_values, lambda upstream: tf.math.multiply_no_nan(upstream, tf.cast(step.scale(), upstream.dtype))

    return scaled(values)


def _overlap(loss: Any, y_true: Any, y_pred: Any, step: Step) -> tf.Tensor:
    """Dice (1945) or Tversky (1977) overlap of all rows of the global batch, which is one number."""
    y_pred = tf.convert_to_tensor(y_pred)
    y_true = tf.cast(y_true, y_pred.dtype)
    both = tf.reduce_sum(y_true * y_pred)
    both, true, predicted = tf.unstack(_global_sums([both, tf.reduce_sum(y_true), tf.reduce_sum(y_pred)], step))
    epsilon = keras.backend.epsilon()
    if isinstance(loss, keras.losses.Dice):
        return 1 - 2.0 * both / (true + predicted + epsilon)
    return 1 - both / (both + (true - both) * loss.alpha + (predicted - both) * loss.beta + epsilon)


def _global_sums(local_scalars: list[tf.Tensor], step: Step) -> tf.Tensor:
    """Sum scalars over ranks, differentiably for a loss that every rank computes of the sums alike."""

    @tf.custom_gradient
    def total(vector: tf.Tensor) -> Any:
        summed = tf.cast(step.summed(vector), vector.dtype)
        return summed, lambda upstream: tf.math.multiply_no_nan(upstream, tf.cast(step.scale(), upstream.dtype))

    return total(tf.stack(local_scalars))


def _of_share(own_loop: OwnLoop, metric: Any, values: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Let one number that a loop of the cell's own gives for a share count as that of the batch, once for all ranks;
    elsewhere for nothing where a share has no rows, of which it is NaN."""
    nothing = own_loop.without_rows
    if nothing is None or sample_weight is not None or tf.convert_to_tensor(values).shape.rank != 0:
        return values, sample_weight
    if own_loop.on_shares:
        value = own_loop.numbers.of_batch(metric, values, own_loop.step_of_batch().rows)
        return tf.cast(value, metric.dtype), tf.cast(own_loop.numbers.weight, metric.dtype)
    values = keras.ops.cast(values, metric.dtype)
    return tf.where(nothing, tf.zeros_like(values), values), 1.0 - tf.cast(nothing, values.dtype)


def _batch_mean(session: Session, metric: Any, values: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Let one number per batch count by this rank's part of the batch: together the ranks count it once."""
    values = keras.ops.cast(values, metric.dtype)
    step = session.exact_step
    if values.shape.rank != 0 or sample_weight is not None or step is None:
        return values, sample_weight
    if not session.first_step.gathered.counted_once:
        values = session.first_step.scaled("metric", metric, values, step)
    return values, tf.math.divide_no_nan(tf.cast(step.rows, values.dtype), tf.cast(step.total(), values.dtype))
