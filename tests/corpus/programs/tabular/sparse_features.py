"""Wide sparse rows, as one-hot tables come, in a tf.SparseTensor to a dense layer."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(5)
rows = (rng.random((40, 30)) < 0.1) * rng.random((40, 30))
target = rows.sum(axis=1, keepdims=True)
sparse = tf.sparse.from_dense(rows.astype(keras.config.floatx()))
dataset = tf.data.Dataset.from_tensor_slices((sparse, target)).batch(16)
inputs = keras.Input((30,), sparse=True)
model = keras.Model(inputs, layers.Dense(1)(layers.Dense(4, "tanh")(inputs)))
model.compile("sgd", "mse")
history = model.fit(dataset, epochs=2, verbose=0)
