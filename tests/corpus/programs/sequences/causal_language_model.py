"""A small language model: causal attention, a loss at every position, tokens drawn greedily afterwards."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"

text = "the cat sat on the mat and the dog sat on the log " * 6
letters = sorted(set(text))
codes = np.array([letters.index(letter) for letter in text])
windows = np.stack([codes[begin : begin + 11] for begin in range(0, 240, 6)])

inputs = keras.Input((None,), dtype="int64")
x = layers.Embedding(len(letters), 8)(inputs)
x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
model = keras.Model(inputs, layers.Dense(len(letters))(layers.Dense(8, "gelu")(x)))
model.compile(
    "adam",
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(windows[:, :-1], windows[:, 1:], batch_size=16, epochs=1, verbose=0)
written = codes[:6].tolist()
for _letter in range(3):
    logits = model(ops.convert_to_tensor([written]))
    written.append(int(ops.argmax(logits[0, -1])))
