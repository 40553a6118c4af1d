"""BatchNormalization over the global batch, with its exact gradient.

Each rank's count, mean and sum of squared deviations are gathered and combined by the parallel formula of Chan, Golub
and LeVeque (1983), which keeps float32 accuracy where E[x^2] - E[x]^2 does not (compare Ioffe and Szegedy 2015, and the
synchronized variants that followed).
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfos_magic.training.step import Step


def global_moments(layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None, step: Step) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of ``inputs`` per channel over all ranks, each of shape (channels,), in the inputs' dtype."""
    axes = layer._reduction_axes
    table = _gather(tf.concat(_local_moments(inputs, mask, axes, step.rows > 0), 0), step)
    counts, means, deviations = tf.split(table, 3, axis=1)
    counts = tf.stop_gradient(counts)
    # Keras adds epsilon to the weights of a mask, and nothing to plain counts.
    total = tf.reduce_sum(counts, 0) + (keras.backend.epsilon() if mask is not None else 0.0)
    mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
    variance = tf.math.divide_no_nan(tf.reduce_sum(deviations + counts * tf.square(means - mean), 0), total)
    shape = [inputs.shape[layer.axis]]
    return tf.ensure_shape(mean, shape), tf.ensure_shape(variance, shape)


def _local_moments(
    inputs: tf.Tensor, mask: tf.Tensor | None, axes: list[int], has_rows: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Count, mean and sum of squared deviations of this rank's rows, by channel; all zero where they are a stand-in.

    What is masked is no part of them, whatever it is: each channel has a count of its own, as where channels are steps.
    """
    if mask is None:
        mean = tf.reduce_mean(inputs, axes, keepdims=True)
        deviation = tf.reduce_sum(tf.math.squared_difference(inputs, mean), axes)
        count = tf.fill(tf.shape(deviation), tf.cast(tf.reduce_prod(tf.gather(tf.shape(inputs), axes)), inputs.dtype))
    else:
        is_there = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
        counts = tf.reduce_sum(tf.cast(is_there, inputs.dtype), axes, keepdims=True)
        mean = tf.math.divide_no_nan(tf.reduce_sum(tf.where(is_there, inputs, 0), axes, keepdims=True), counts)
        deviation = tf.reduce_sum(tf.square(tf.where(is_there, inputs - mean, 0)), axes)
        count = tf.reshape(counts, [-1])
    return tuple(
        tf.where(has_rows, value, tf.zeros_like(value)) for value in (count, tf.reshape(mean, [-1]), deviation)
    )


def _gather(vector: tf.Tensor, step: Step) -> tf.Tensor:
    """Give every rank the vectors of all, shape (size, len(vector)), differentiably.

    A rank's loss counts with the weight of its rows, by which its gradients are multiplied later on. So the gradient
    that comes back to a rank is the sum over ranks of theirs times their rows, divided by its own rows.
    """
    collectives = step.collectives
    rank, size = collectives.rank, collectives.size
    rows = tf.cast(step.rows, vector.dtype)

    @tf.custom_gradient
    def gather(local_vector: tf.Tensor) -> Any:
        table = tf.one_hot(rank, size, dtype=local_vector.dtype)[:, tf.newaxis] * local_vector[tf.newaxis]

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            weighted = tf.math.multiply_no_nan(upstream, tf.broadcast_to(rows, tf.shape(upstream)))
            return tf.math.divide_no_nan(collectives.all_reduce([weighted])[0][rank], rows)

        return collectives.all_reduce([table])[0], backward

    return gather(vector)
