"""No optimizer at all: plain variables, gradients and assign_sub, as the first lesson has it."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

dtype = keras.config.floatx()
rng = np.random.default_rng(13)
x = rng.normal(size=(40, 2)).astype(dtype)
y = (x @ np.array([[1.0], [-2.0]]) + 0.5).astype(dtype)
w, b = tf.Variable(tf.zeros((2, 1), dtype)), tf.Variable(tf.zeros((1,), dtype))
losses = []
for batch_x, batch_y in tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40, seed=1).batch(16):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((batch_x @ w + b - batch_y) ** 2)
    for variable, gradient in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
        variable.assign_sub(0.1 * gradient)
    losses.append(float(loss))
