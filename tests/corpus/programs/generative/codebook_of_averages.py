"""A VQ-VAE whose codebook is no weight but a moving average of the sums and counts of rows in each cluster."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "refused: mixes the rows of a batch"


class Codebook(layers.Layer):
    def __init__(self, codes, decay=0.9):
        super().__init__()
        self.codes, self.decay = codes, decay

    def build(self, shape):
        uniform = keras.initializers.RandomUniform(-1.0, 1.0, seed=1)
        self.counts = self.add_weight(shape=(self.codes,), initializer="ones", trainable=False)
        self.sums = self.add_weight(shape=(self.codes, shape[-1]), initializer=uniform, trainable=False)

    def call(self, x, training=False):
        table = self.sums / ops.expand_dims(self.counts, 1)
        apart = ops.sum((ops.expand_dims(x, 1) - table) ** 2, axis=-1)
        chosen = ops.one_hot(ops.argmin(apart, axis=1), self.codes, dtype=x.dtype)
        if training:
            fresh = ops.stop_gradient(ops.matmul(ops.transpose(chosen), x))
            self.counts.assign(self.decay * self.counts + (1 - self.decay) * ops.sum(chosen, axis=0))
            self.sums.assign(self.decay * self.sums + (1 - self.decay) * fresh)
        quantized = ops.matmul(chosen, table)
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(quantized) - x) ** 2))
        return x + ops.stop_gradient(quantized - x)


model = keras.Sequential([keras.Input((4,)), layers.Dense(2), Codebook(3), layers.Dense(4)])
model.compile("adam", "mse")
x = np.random.default_rng(7).normal(size=(37, 4))
history = model.fit(x, x, batch_size=16, epochs=2, verbose=0)
