"""A loop over tokens: rows of a table that occur many times in a batch, and positions that all rows share."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(14)
tokens = rng.integers(0, 9, size=(48, 5))
target = rng.normal(size=(48, 1)).astype(keras.config.floatx())


class Placed(layers.Layer):
    def __init__(self):
        super().__init__()
        self.words, self.places = layers.Embedding(9, 4), layers.Embedding(5, 4)

    def call(self, x):
        return keras.ops.tanh(self.words(x) + self.places(keras.ops.arange(5)))


model = keras.Sequential([keras.Input((5,), dtype="int64"), Placed(), layers.GlobalAveragePooling1D(), layers.Dense(1)])
optimizer = keras.optimizers.Adam(0.02)


def step(rows, wanted):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(rows, training=True) - wanted) ** 2)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


step(tokens[:16], target[:16])
traced = tf.function(step)
for begin in (16, 32):
    traced(tokens[begin : begin + 16], target[begin : begin + 16])
model.compile(keras.optimizers.Adam(0.02), "mse")
history = model.fit(tokens, target, batch_size=20, verbose=0)
on_one = model.train_on_batch(tokens, target)
