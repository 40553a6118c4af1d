"""A PyDataset that makes its batches itself and changes them after each epoch."""

import math

import keras
import numpy as np

EXPECT = "equal"


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.batch_size, self.epoch = x, y, batch_size, 0

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.x[rows] * (1.0 + 0.1 * self.epoch), self.y[rows]

    def on_epoch_end(self):
        self.epoch += 1


rng = np.random.default_rng(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(Batches(rng.normal(size=(43, 3)), rng.normal(size=(43, 1)), 16), shuffle=False, epochs=2, verbose=0)
