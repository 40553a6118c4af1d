"""Deep and cross: explicit products of features beside a network, over embeddings of categories."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

SIZES = {"user": 9, "shop": 5, "hour": 24}
inputs = {name: keras.Input((1,), name=name, dtype="int64") for name in SIZES}
embedded = [layers.Flatten()(layers.Embedding(size, 3)(inputs[name])) for name, size in SIZES.items()]
x0 = cross = layers.concatenate(embedded)
for _ in range(2):
    cross = layers.add([layers.multiply([x0, layers.Dense(9)(cross)]), cross])
deep = layers.Dense(6, "relu")(layers.Dense(8, "relu")(x0))
model = keras.Model(inputs, layers.Dense(1)(layers.concatenate([cross, deep])))

rng = np.random.default_rng(1)
rows = {name: rng.integers(0, size, (43, 1)) for name, size in SIZES.items()}
clicked = (rows["hour"] > 12).astype("int64")
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
history = model.fit(rows, clicked, batch_size=16, epochs=2, verbose=0)
