"""Contrastive learning: the other rows of a batch are the negatives of each row."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EXPECT = "refused: mixes the rows of a batch"


class Contrastive(keras.Model):
    def __init__(self, encoder, temperature=0.1):
        super().__init__()
        self.encoder, self.temperature = encoder, temperature
        self.tracker = keras.metrics.Mean(name="c_loss")

    @property
    def metrics(self):
        return [self.tracker]

    def contrastive_loss(self, one, two):
        one, two = ops.normalize(one, axis=1), ops.normalize(two, axis=1)
        similarities = ops.matmul(one, ops.transpose(two)) / self.temperature
        labels = ops.arange(ops.shape(one)[0])
        there = keras.losses.sparse_categorical_crossentropy(labels, similarities, from_logits=True)
        back = keras.losses.sparse_categorical_crossentropy(labels, ops.transpose(similarities), from_logits=True)
        return ops.mean(there + back) / 2

    def train_step(self, data):
        first, second = data
        with tf.GradientTape() as tape:
            loss = self.contrastive_loss(self.encoder(first, training=True), self.encoder(second, training=True))
        gradients = tape.gradient(loss, self.encoder.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.encoder.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}


rng = np.random.default_rng(0)
rows = rng.normal(size=(40, 6))
views = [rows + 0.1 * rng.normal(size=rows.shape) for _ in range(2)]
model = Contrastive(keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(4)]))
model.compile(optimizer="adam")
model.fit(*views, batch_size=16, epochs=1, verbose=0)
weights = model.encoder.get_weights()
