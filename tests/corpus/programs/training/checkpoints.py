"""The best weights are written as training goes, loaded again and trained on."""

import os
import tempfile

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(6)
x, y = rng.normal(size=(50, 4)), rng.normal(size=(50, 1))
_best = os.path.join(tempfile.gettempdir(), "corpus-best.weights.h5")

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), "mse")
saving = keras.callbacks.ModelCheckpoint(_best, monitor="val_loss", save_best_only=True, save_weights_only=True)
history = model.fit(x, y, batch_size=16, epochs=3, validation_split=0.3, callbacks=[saving], verbose=0)
model.load_weights(_best)
best = model.evaluate(x, y, verbose=0)
further = model.fit(x, y, batch_size=16, epochs=1, verbose=0)
