"""A tf.data pipeline: shuffle, split by take and skip, map in parallel, batch, repeat, prefetch."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

rng = np.random.default_rng(0)
x, y = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
everything = tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).shuffle(60, seed=3, reshuffle_each_iteration=False)
held_out, rest = everything.take(13), everything.skip(13)


def pair(row):
    return tf.clip_by_value(row["x"], -2.0, 2.0), row["y"]


train = rest.map(pair, num_parallel_calls=tf.data.AUTOTUNE).cache().shuffle(47, seed=5).batch(16).repeat().prefetch(2)
validation = held_out.map(pair).batch(16)
model = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(train, steps_per_epoch=3, epochs=2, validation_data=validation, verbose=0)
