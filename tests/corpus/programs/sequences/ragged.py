"""Ragged rows of numbers become dense in a model's first layer, and are averaged under a mask."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(8)
rows = tf.ragged.constant([rng.integers(1, 9, size=rng.integers(1, 6)).tolist() for _ in range(39)])
labels = rng.normal(size=(39, 1))
dataset = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(16)
dense = dataset.map(lambda x, y: (x.to_tensor(shape=(None, 6)), y))
model = keras.Sequential(
    [keras.Input((6,)), layers.Embedding(9, 4, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(1)]
)
model.compile("adam", "mse")
history = model.fit(dense, epochs=2, verbose=0)
