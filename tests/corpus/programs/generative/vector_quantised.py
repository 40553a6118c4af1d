"""A VQ-VAE: the nearest code for each row, straight-through gradients, losses of codebook and commitment."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"


class VectorQuantizer(layers.Layer):
    def __init__(self, codes, width, beta=0.25):
        super().__init__()
        self.codes, self.width, self.beta = codes, width, beta
        self.table = self.add_weight(shape=(width, codes), initializer="random_uniform", name="codebook")

    def call(self, x):
        apart = ops.sum(x**2, axis=1, keepdims=True) + ops.sum(self.table**2, axis=0) - 2 * ops.matmul(x, self.table)
        chosen = ops.one_hot(ops.argmin(apart, axis=1), self.codes, dtype=x.dtype)
        quantized = ops.matmul(chosen, ops.transpose(self.table))
        commitment = ops.mean((ops.stop_gradient(quantized) - x) ** 2)
        self.add_loss(self.beta * commitment + ops.mean((quantized - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(quantized - x)


model = keras.Sequential([keras.Input((5,)), layers.Dense(3), VectorQuantizer(6, 3), layers.Dense(5)])
model.compile("adam", "mse")
x = np.random.default_rng(6).normal(size=(37, 5))
history = model.fit(x, x, batch_size=16, epochs=2, verbose=0)
