"""A network that solves u'' + u = 0: its loss has second derivatives of the output by the input."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

dtype = keras.config.floatx()
points = tf.constant(np.linspace(0, 3, 30)[:, None].astype(dtype))
ends = tf.constant([[0.0]], dtype), tf.constant([[0.0]], dtype)
net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.9))


@tf.function
def residual(t):
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            u = net(t)
        slope = inner.gradient(u, t)
    return outer.gradient(slope, t) + u


@tf.function
def train(t):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(residual(t) ** 2) + tf.reduce_sum((net(ends[0]) - ends[1]) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True))
    return loss


losses = [float(train(points)) for _ in range(4)]
