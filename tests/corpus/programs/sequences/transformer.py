"""A transformer block of one's own over token and position embeddings, without dropout."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"


class TokenAndPosition(layers.Layer):
    def __init__(self, length, tokens, width):
        super().__init__()
        self.tokens, self.positions = layers.Embedding(tokens, width), layers.Embedding(length, width)

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(0, ops.shape(x)[-1], 1))


class Block(layers.Layer):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads=heads, key_dim=width)
        self.feed = keras.Sequential([layers.Dense(inner, activation="relu"), layers.Dense(width)])
        self.first, self.second = layers.LayerNormalization(epsilon=1e-6), layers.LayerNormalization(epsilon=1e-6)

    def call(self, x):
        x = self.first(x + self.attention(x, x))
        return self.second(x + self.feed(x))


inputs = keras.Input((8,), dtype="int64")
x = Block(6, 2, 8)(TokenAndPosition(8, 20, 6)(inputs))
model = keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(x)))
rng = np.random.default_rng(3)
tokens = rng.integers(0, 20, size=(38, 8))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(tokens, tokens[:, 0] % 2, batch_size=16, epochs=2, verbose=0)
