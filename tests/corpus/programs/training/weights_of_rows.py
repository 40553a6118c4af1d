"""Weights of classes in one fit, weights of rows in another, and a mean that is divided by the weights."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(11)
x, y, importance = rng.normal(size=(42, 4)), rng.integers(0, 3, 42), rng.random(42)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(3)])
crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", crossentropy, metrics=["accuracy"], weighted_metrics=["accuracy"])
by_class = model.fit(x, y, class_weight={0: 1.0, 1: 5.0, 2: 0.5}, batch_size=16, verbose=0)
by_row = model.fit(x, y, sample_weight=importance, batch_size=16, verbose=0)

divided = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
model.compile("adam", divided)
by_weight = model.fit(x, y, sample_weight=importance, batch_size=16, verbose=0)
