"""Cross-validation: a model is made anew, trained and evaluated for each fold."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(10)
x, y = rng.normal(size=(47, 4)), rng.normal(size=47)
scores = []
for fold in range(3):
    held_out = np.arange(47) % 3 == fold
    model = keras.Sequential([keras.layers.Dense(5, activation="relu"), keras.layers.Dense(1)])
    model.compile("rmsprop", "mse", metrics=["mae"])
    model.fit(x[~held_out], y[~held_out], epochs=1, batch_size=16, verbose=0)
    scores.append(model.evaluate(x[held_out], y[held_out], verbose=0)[1])
mean_score = np.mean(scores)
