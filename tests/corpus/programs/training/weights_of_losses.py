"""Weights of the terms of a loss in one variable, which a callback moves from one term to the others."""

import keras
import numpy as np
from keras import ops

EXPECT = "equal"

rng = np.random.default_rng(6)
x = rng.normal(size=(50, 6)).astype(keras.config.floatx())
y = 2 * x[:, :1] - x[:, 1:2]
shares = keras.Variable([1.0, 0.0, 0.0], trainable=False, name="shares")
seen = []


class Move(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        shares.assign([1.0, epoch / 2, float(epoch > 1)])

    def on_test_batch_end(self, batch, logs=None):
        seen.append(float(logs["loss"]))


def loss(truth, made):
    apart = truth - made
    terms = [ops.mean(ops.square(apart), -1), ops.mean(ops.abs(apart), -1), ops.sum(ops.log(ops.cosh(apart)), -1)]
    return sum(ops.cast(shares[i], made.dtype) * term for i, term in enumerate(terms))


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), loss)
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0, validation_data=(x[:33], y[:33]), callbacks=[Move()])
