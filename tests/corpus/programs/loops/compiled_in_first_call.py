"""A step compiled by XLA in whose first call model and optimizer are built."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"
NOTICE = "jit_compile is off"

rng = np.random.default_rng(4)
x, y = (rng.normal(size=(48, n)).astype(keras.config.floatx()) for n in (4, 1))
model = keras.Sequential([keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.RMSprop(0.01)


@tf.function(jit_compile=True)
def step(rows, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(model(rows, training=True) - targets))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


total = sum(float(step(x[i : i + 16], y[i : i + 16])) for i in range(0, 48, 16))
