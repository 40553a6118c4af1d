"""A penalty whose weight a callback raises from zero, and a second term that begins at an epoch of its own."""

import keras
import numpy as np
from keras import ops

EXPECT = "equal"

rng = np.random.default_rng(6)
x = rng.normal(size=(50, 6)).astype(keras.config.floatx())
y = 2 * x[:, :1] - x[:, 1:2]
share = keras.Variable(0.0, trainable=False, name="share")


class Raising(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        share.assign(epoch / 2)


class Penalised(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.epoch = self.add_weight(shape=(), initializer="zeros", trainable=False, name="epoch")

    def call(self, x):
        self.add_loss(share * ops.mean(ops.square(x)))
        self.add_loss(ops.cond(share > 0.5, lambda: ops.sum(ops.abs(x)), lambda: ops.sum(ops.square(x))))
        return x


model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), Penalised(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[Raising()])
