"""A stateful LSTM: batches follow each other in time, and each row goes on where it was."""

import keras
import numpy as np
from keras import layers

EXPECT = "refused: -n 1"

series = np.random.default_rng(2).normal(size=(8, 24, 1))
x = np.concatenate([series[:, begin : begin + 6] for begin in range(0, 24, 6)])
y = x.mean(axis=1)
model = keras.Sequential([keras.Input(batch_shape=(8, 6, 1)), layers.LSTM(4, stateful=True), layers.Dense(1)])
model.compile("adam", "mse")
for _epoch in range(2):
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    model.layers[0].reset_state()
