"""A Python generator without an end that draws its batches from a generator of its own seed."""

import keras
import numpy as np

EXPECT = "equal"


def batches(size):
    rng = np.random.default_rng(2)
    while True:
        x = rng.uniform(-1, 1, size=(size, 2))
        yield x, np.prod(x, axis=1, keepdims=True)


model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(batches(15), steps_per_epoch=3, epochs=2, verbose=0)
