"""Gradients of two batches added up by hand in variables, then applied and cleared."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

rng = np.random.default_rng(7)
x, y = (rng.normal(size=(64, n)).astype(keras.config.floatx()) for n in (4, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "elu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.02)
sums = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in model.trainable_variables]


@tf.function
def collect(rows, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(rows, training=True) - targets) ** 2) / 2
    for total, gradient in zip(sums, tape.gradient(loss, model.trainable_variables), strict=True):
        total.assign_add(gradient)


@tf.function
def apply():
    clipped, norm = tf.clip_by_global_norm([total.read_value() for total in sums], 0.5)
    optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))
    for total in sums:
        total.assign(tf.zeros_like(total))
    return norm


norms = []
for begin in range(0, 64, 32):
    collect(x[begin : begin + 16], y[begin : begin + 16])
    collect(x[begin + 16 : begin + 32], y[begin + 16 : begin + 32])
    norms.append(float(apply()))
