"""add_loss of a sum over the batch, of a mean, and of a penalty of weights, each in a layer of its own."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"


class Summed(layers.Layer):
    def call(self, x):
        self.add_loss(0.002 * ops.sum(ops.abs(x)))
        return x


class Averaged(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.mean(x**2))
        return x


class Penalised(layers.Dense):
    def call(self, x):
        self.add_loss(0.01 * ops.sum(self.kernel**2))
        return super().call(x)


rng = np.random.default_rng(1)
model = keras.Sequential([keras.Input((4,)), Penalised(5), Summed(), layers.Dense(4), Averaged(), Penalised(1)])
model.compile("adam", "mse")
history = model.fit(rng.normal(size=(41, 4)), rng.normal(size=(41, 1)), batch_size=16, epochs=2, verbose=0)
