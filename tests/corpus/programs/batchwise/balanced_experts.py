"""Experts whose gate is kept even by a loss of its mean use over the batch, squared."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "refused: mixes the rows of a batch"


class Gate(layers.Layer):
    def __init__(self, experts):
        super().__init__()
        self.dense = layers.Dense(experts, activation="softmax")

    def call(self, x):
        shares = self.dense(x)
        self.add_loss(0.1 * ops.sum(ops.mean(shares, axis=0) ** 2))
        return shares


inputs = keras.Input((4,))
gate = ops.expand_dims(Gate(3)(inputs), 1)
experts = layers.Reshape((2, 3))(layers.Dense(6, activation="tanh")(inputs))
model = keras.Model(inputs, layers.Dense(1)(ops.sum(gate * experts, axis=-1)))
rng = np.random.default_rng(10)
model.compile("adam", "mse")
model.fit(rng.normal(size=(40, 4)), rng.normal(size=(40, 1)), batch_size=16, verbose=0)
