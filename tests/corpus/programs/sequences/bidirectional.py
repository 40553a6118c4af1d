"""Token sequences of different lengths, padded and masked, read in both directions."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(1)
sentences = [rng.integers(1, 15, size=rng.integers(2, 7)).tolist() for _ in range(37)]
x = keras.utils.pad_sequences(sentences, maxlen=6)
y = np.array([len(s) > 4 for s in sentences], "int64")
model = keras.Sequential(
    [
        keras.Input((6,), dtype="int64"),
        layers.Embedding(15, 4, mask_zero=True),
        layers.Bidirectional(layers.GRU(3)),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=16, epochs=2, validation_split=0.2, verbose=0)
