"""Barlow Twins: the correlation of features over the batch should be the identity."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "refused: mixes the rows of a batch"


class Twins(keras.Model):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def call(self, pair):
        one, two = (self.encoder(view) for view in pair)
        one, two = ((z - ops.mean(z, axis=0)) / (ops.std(z, axis=0) + 1e-4) for z in (one, two))
        correlation = ops.matmul(ops.transpose(one), two) / ops.cast(ops.shape(one)[0], one.dtype)
        self.add_loss(ops.sum((correlation - ops.eye(3, dtype=one.dtype)) ** 2))
        return one


rng = np.random.default_rng(6)
x = rng.normal(size=(40, 5))
pair = (x + 0.1 * rng.normal(size=x.shape), x + 0.1 * rng.normal(size=x.shape))
model = Twins(keras.Sequential([keras.Input((5,)), layers.Dense(6, "tanh"), layers.Dense(3)]))
model.compile("adam")
model.fit(list(pair), batch_size=16, verbose=0)
