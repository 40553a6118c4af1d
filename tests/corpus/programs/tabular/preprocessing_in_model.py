"""Raw columns go into the model by name; bins, lookups and normalisation, all adapted, are part of it."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(4)
rows = {
    "size": rng.gamma(2.0, 30.0, (47, 1)),
    "rooms": rng.integers(1, 6, (47, 1)),
    "year": rng.integers(1900, 2020, (47, 1)),
}
price = rows["size"] * 3 + rng.normal(size=(47, 1))

scale, bins, lookup = layers.Normalization(axis=None), layers.Discretization(num_bins=4), layers.IntegerLookup()
scale.adapt(rows["size"])
bins.adapt(rows["year"])
lookup.adapt(rows["rooms"])
inputs = {
    "size": keras.Input((1,), name="size"),
    "rooms": keras.Input((1,), name="rooms", dtype="int64"),
    "year": keras.Input((1,), name="year"),
}
parts = [
    scale(inputs["size"]),
    layers.Flatten()(layers.Embedding(7, 2)(lookup(inputs["rooms"]))),
    layers.CategoryEncoding(num_tokens=4, output_mode="one_hot")(bins(inputs["year"])),
]
model = keras.Model(inputs, layers.Dense(1)(layers.Dense(5, "relu")(layers.concatenate(parts))))
model.compile("adam", keras.losses.MeanAbsolutePercentageError())
history = model.fit(rows, price, batch_size=16, epochs=2, verbose=0)
