"""A variational autoencoder whose sampling layer adds its divergence, averaged over rows, to the compiled loss."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "expectation"


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, mean, log_var):
        self.add_loss(-0.5 * ops.mean(ops.sum(1 + log_var - mean**2 - ops.exp(log_var), axis=-1)))
        return mean + ops.exp(0.5 * log_var) * keras.random.normal(ops.shape(mean), seed=self.seeds)


inputs = keras.Input((6,))
hidden = layers.Dense(5, activation="tanh")(inputs)
code = Sampling()(layers.Dense(2)(hidden), layers.Dense(2)(hidden))
model = keras.Model(inputs, layers.Dense(6)(layers.Dense(5, activation="tanh")(code)))
model.compile("adam", "mse")
x = np.random.default_rng(1).normal(size=(37, 6))
history = model.fit(x, x, batch_size=16, epochs=2, verbose=0)
