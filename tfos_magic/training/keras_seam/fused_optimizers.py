"""Optimizer updates in one pass over memory, by TensorFlow's own fused kernels.

Every rank of ``sync`` repeats the whole update, so what a pass costs is paid once per rank. Keras writes Adam and SGD
as a dozen operations that each read and write whole tensors; TensorFlow has one kernel for each, with the same formula.
Adam's velocities are left out of its kernel, which takes ``1 - beta_2`` in the variable's dtype: 0.001 is off by 1.3e-5
there in float32, and so would be every step. Sparse gradients, for which that leaves nothing to gain, those of another
dtype and every other optimizer keep Keras's code.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf

from tfos_magic.training.keras_seam.seams import wrap

_DTYPES = (tf.float32, tf.float64)


def install(stack: ExitStack) -> None:
    """Let Adam, AdamW and SGD use fused kernels until ``stack`` closes."""
    wrap(stack, keras.optimizers.Adam, "update_step", _adam)
    wrap(stack, keras.optimizers.SGD, "update_step", _sgd)


def _adam(original: Any, optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    if optimizer.amsgrad or not _fits(gradient, variable):
        original(optimizer, gradient, variable, learning_rate)
        return
    index, dtype = optimizer._get_variable_index(variable), variable.dtype
    momentum, velocity = optimizer._momentums[index].value, optimizer._velocities[index].value
    # Towards the squares of the gradient. A step that finds its data at their end is cut short, and must not have let
    # the velocity decay by then.
    with tf.control_dependencies([gradient]):
        away = velocity - tf.square(gradient)
    alpha = tf.constant(1 - optimizer.beta_2, dtype)
    tf.raw_ops.ResourceApplyGradientDescent(var=velocity.handle, alpha=alpha, delta=away)
    step = keras.ops.cast(optimizer.iterations + 1, dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.handle,
        v=velocity.handle,
        beta1_power=tf.pow(keras.ops.cast(optimizer.beta_1, dtype), step),
        beta2_power=tf.pow(keras.ops.cast(optimizer.beta_2, dtype), step),
        lr=tf.cast(learning_rate, dtype),
        beta1=tf.constant(optimizer.beta_1, dtype),
        beta2=tf.constant(1, dtype),
        epsilon=tf.constant(optimizer.epsilon, dtype),
        grad=gradient,
    )


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
        momentum=keras.ops.cast(optimizer.momentum, variable.dtype),
        use_nesterov=optimizer.nesterov,
    )


def _fits(gradient: Any, variable: Any) -> bool:
    return isinstance(gradient, tf.Tensor) and gradient.dtype == variable.dtype and variable.dtype in _DTYPES
