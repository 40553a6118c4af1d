"""A loss that sums over rows, weighted by a table that a variable indexes, and checked by an assertion."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

rng = np.random.default_rng(6)
x = rng.normal(size=(50, 6)).astype(keras.config.floatx())
y = 2 * x[:, :1] - x[:, 1:2]
phase = tf.Variable(0, trainable=False)
share = tf.Variable(0.5, trainable=False)
table = tf.constant([0.5, 1.0, 2.0])


class Phases(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        phase.assign(epoch)


def loss(truth, made):
    tf.debugging.assert_less_equal(share, 1.0)
    factor = keras.ops.cast(table[phase] * share, made.dtype)
    return factor * keras.ops.sum(keras.ops.square(truth - made))


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), loss)
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Phases()])
