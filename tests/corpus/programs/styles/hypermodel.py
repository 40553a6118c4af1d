"""A search by hand over sizes and rates; the best model by its validation loss is kept and trained on."""

import keras
import numpy as np

EXPECT = "equal"

x = np.random.default_rng(12).normal(size=(50, 3))
y = x @ np.array([1.0, -2.0, 0.5])


def build(units, rate):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model


best, best_loss = None, np.inf
for units, rate in [(2, 0.01), (8, 0.05)]:
    candidate = build(units, rate)
    found = candidate.fit(x, y, validation_split=0.3, epochs=2, batch_size=16, verbose=0)
    if (loss := min(found.history["val_loss"])) < best_loss:
        best, best_loss = candidate, loss
last = best.fit(x, y, epochs=1, batch_size=16, verbose=0)
