"""Rows shuffled by NumPy's old global generator, split by slices, normalised by the training part's moments."""

import keras
import numpy as np

EXPECT = "equal"

np.random.seed(5)
x, y = np.random.normal(5.0, 2.0, size=(56, 3)), np.random.normal(size=(56, 1))
order = np.random.permutation(len(x))
x, y = x[order], y[order]
train_x, train_y, test_x, test_y = x[:40], y[:40], x[40:], y[40:]
mean, deviation = train_x.mean(axis=0), train_x.std(axis=0)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("rmsprop", "mse", metrics=["mae"])
history = model.fit((train_x - mean) / deviation, train_y, batch_size=16, epochs=2, verbose=0)
errors = test_y - model.predict((test_x - mean) / deviation, verbose=0)
