"""A copy of the model follows by a moving average of weights; the copy is what is evaluated."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

rng = np.random.default_rng(8)
x, y = (rng.normal(size=(48, n)).astype(keras.config.floatx()) for n in (4, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(1)])
follower = keras.models.clone_model(model)
follower.set_weights(model.get_weights())
optimizer, mse = keras.optimizers.Adam(0.02), keras.losses.MeanSquaredError()


@tf.function
def step(rows, targets):
    with tf.GradientTape() as tape:
        loss = mse(targets, model(rows, training=True))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    for slow, fast in zip(follower.weights, model.weights, strict=True):
        slow.assign(0.8 * slow + 0.2 * fast)


for _epoch in range(2):
    for begin in range(0, 48, 16):
        step(x[begin : begin + 16], y[begin : begin + 16])
follower.compile(loss="mse")
judged = follower.evaluate(x, y, verbose=0)
