"""Texts as strings all the way: the vectorization, adapted to them, is the model's first layer."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "equal"

words = ["good", "bad", "fine", "film", "plot", "actor", "dull", "great"]
rng = np.random.default_rng(6)
texts = np.array([" ".join(rng.choice(words, size=rng.integers(2, 6))) for _ in range(41)])
labels = np.array(["good" in text or "great" in text for text in texts], "int64")

vectorize = layers.TextVectorization(max_tokens=12, output_mode="int", output_sequence_length=6)
vectorize.adapt(texts)
model = keras.Sequential(
    [
        keras.Input((1,), dtype="string"),
        vectorize,
        layers.Embedding(12, 4),
        layers.Conv1D(3, 3, activation="relu"),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
dataset = tf.data.Dataset.from_tensor_slices((texts[:, None], labels)).batch(16)
history = model.fit(dataset, epochs=2, verbose=0)
