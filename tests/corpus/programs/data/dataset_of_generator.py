"""tf.data from a Python function with a signature, batches padded to the longest of each."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "equal"


def rows():
    rng = np.random.default_rng(3)
    for _ in range(38):
        length = rng.integers(1, 5)
        yield rng.normal(size=(length, 2)), float(length)


signature = (tf.TensorSpec((None, 2), tf.float64), tf.TensorSpec((), tf.float64))
dataset = tf.data.Dataset.from_generator(rows, output_signature=signature).padded_batch(16)
model = keras.Sequential([keras.Input((None, 2)), layers.Masking(), layers.SimpleRNN(4), layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(dataset, epochs=2, verbose=0)
