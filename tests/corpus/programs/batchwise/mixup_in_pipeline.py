"""Mixup in the tf.data pipeline, before rows are shared out: two shuffled copies of the data are blended by rows."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

rng = np.random.default_rng(5)
x, y = rng.normal(size=(40, 5)), rng.random((40, 2))
source = tf.data.Dataset.from_tensor_slices((x, y))
one, two = source.shuffle(40, seed=1).batch(16), source.shuffle(40, seed=2).batch(16)


def blend(first, second):
    return tf.nest.map_structure(lambda a, b: 0.7 * a + 0.3 * b, first, second)


mixed = tf.data.Dataset.zip((one, two)).map(blend, num_parallel_calls=tf.data.AUTOTUNE).prefetch(1)
model = keras.Sequential([keras.layers.Dense(6, "relu"), keras.layers.Dense(2, "sigmoid")])
model.compile("sgd", "binary_crossentropy")
history = model.fit(mixed, epochs=2, verbose=0)
