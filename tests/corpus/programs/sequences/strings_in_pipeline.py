"""Texts become tf-idf vectors in the tf.data pipeline, before a linear model sees them."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "equal"

words = ["red", "green", "blue", "light", "dark", "warm", "cold"]
rng = np.random.default_rng(7)
texts = [" ".join(rng.choice(words, size=4)) for _ in range(45)]
labels = [int("red" in text) + int("warm" in text) for text in texts]

raw = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(16)
vectorize = layers.TextVectorization(ngrams=2, max_tokens=30, output_mode="tf_idf")
vectorize.adapt(raw.map(lambda text, label: text))
ready = raw.map(lambda text, label: (vectorize(text), label), num_parallel_calls=2).cache().prefetch(tf.data.AUTOTUNE)
model = keras.Sequential([layers.Dense(4, "relu"), layers.Dense(3, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(ready, epochs=2, validation_data=ready.take(1), verbose=0)
