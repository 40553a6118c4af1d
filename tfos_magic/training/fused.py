"""Optimizer updates in one pass over memory, by TensorFlow's own fused kernels.

Every rank of ``sync`` repeats the whole update, so what a pass costs is paid once per rank. Keras writes Adam and SGD
as a dozen operations that each read and write whole tensors; TensorFlow has one kernel for each, with the same formula.
Adam takes the rows of a sparse gradient first and then makes one pass over the whole table, where Keras makes ten.
Gradients of another dtype, and every other optimizer, keep Keras's code.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf

from tfos_magic.training.patching import wrap

_DTYPES = (tf.float32, tf.float64)


def install(stack: ExitStack) -> None:
    """Let Adam, AdamW and SGD use fused kernels until ``stack`` closes."""
    wrap(stack, keras.optimizers.Adam, "update_step", _adam)
    wrap(stack, keras.optimizers.SGD, "update_step", _sgd)


def _adam(original: Any, optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    sparse = isinstance(gradient, tf.IndexedSlices) and optimizer.beta_1 > 0 and optimizer.beta_2 > 0
    if optimizer.amsgrad or not _fits(gradient.values if sparse else gradient, variable):
        original(optimizer, gradient, variable, learning_rate)
        return
    index, dtype = optimizer._get_variable_index(variable), variable.dtype
    if sparse:
        _add_rows(optimizer._momentums[index].value, gradient, gradient.values, optimizer.beta_1)
        _add_rows(optimizer._velocities[index].value, gradient, tf.square(gradient.values), optimizer.beta_2)
        gradient = tf.zeros_like(variable)
    step = keras.ops.cast(optimizer.iterations + 1, dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=optimizer._momentums[index].value.handle,
        v=optimizer._velocities[index].value.handle,
        beta1_power=tf.pow(tf.cast(optimizer.beta_1, dtype), step),
        beta2_power=tf.pow(tf.cast(optimizer.beta_2, dtype), step),
        lr=tf.cast(learning_rate, dtype),
        beta1=tf.cast(optimizer.beta_1, dtype),
        beta2=tf.cast(optimizer.beta_2, dtype),
        epsilon=tf.cast(optimizer.epsilon, dtype),
        grad=gradient,
    )


def _add_rows(moment: Any, gradient: tf.IndexedSlices, values: tf.Tensor, beta: float) -> None:
    """Add (1 - beta) / beta of ``values`` to rows of ``moment``, so that a step with a gradient of zeros, which
    multiplies by beta, leaves what Keras makes of ``values``: a row that occurs twice is added twice."""
    moment.scatter_add(tf.IndexedSlices(values * ((1 - beta) / beta), gradient.indices))


def _sgd(original: Any, optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    if not _fits(gradient, variable):
        original(optimizer, gradient, variable, learning_rate)
        return
    rate = tf.cast(learning_rate, variable.dtype)
    if optimizer.momentum == 0:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
        return
    momentum = optimizer.momentums[optimizer._get_variable_index(variable)]
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=momentum.value.handle,
        lr=rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, variable.dtype),
        use_nesterov=optimizer.nesterov,
    )


def _fits(gradient: Any, variable: Any) -> bool:
    return isinstance(gradient, tf.Tensor) and gradient.dtype == variable.dtype and variable.dtype in _DTYPES
