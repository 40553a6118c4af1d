"""The same idea in a loop over arrays, where every worker has all rows: nothing is to be refused."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EXPECT = "equal"

rng = np.random.default_rng(1)
rows = rng.normal(size=(32, 6)).astype(keras.config.floatx())
encoder = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(4)])
optimizer, losses = keras.optimizers.Adam(0.01), []


@tf.function
def step(one, two):
    with tf.GradientTape() as tape:
        a, b = ops.normalize(encoder(one), axis=1), ops.normalize(encoder(two), axis=1)
        labels = ops.arange(ops.shape(a)[0])
        logits = ops.matmul(a, ops.transpose(b)) / 0.2
        loss = ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
    gradients = tape.gradient(loss, encoder.trainable_variables)
    optimizer.apply(gradients, encoder.trainable_variables)
    return loss


for _epoch in range(2):
    order = rng.permutation(len(rows))
    for begin in range(0, len(rows), 16):
        batch = rows[order[begin : begin + 16]]
        shifted = batch + 0.1 * rng.normal(size=batch.shape).astype(batch.dtype)
        losses.append(float(step(batch, shifted)))
