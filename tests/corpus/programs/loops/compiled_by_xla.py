"""A step that is compiled by XLA, its model and optimizer built before."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"
NOTICE = "jit_compile is off"

rng = np.random.default_rng(3)
x, y = (rng.normal(size=(48, n)).astype(keras.config.floatx()) for n in (4, 2))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)


@tf.function(jit_compile=True)
def train_step(rows, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(rows) - targets) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


losses = [float(train_step(x[i : i + 16], y[i : i + 16])) for i in range(0, 48, 16)]
