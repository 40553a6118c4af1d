"""A layer that standardises by a running mean of its own over the rows that it has seen."""

import keras
import numpy as np
from keras import ops

EXPECT = "equal"


class RunningCentre(keras.layers.Layer):
    def build(self, shape):
        self.centre = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        centred = x - self.centre
        if training:
            self.centre.assign(0.9 * self.centre + 0.1 * ops.mean(x, axis=0))
        return centred


rng = np.random.default_rng(7)
x, y = rng.normal(3.0, 1.0, size=(41, 3)), rng.normal(size=(41, 1))
model = keras.Sequential([keras.Input((3,)), RunningCentre(), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
