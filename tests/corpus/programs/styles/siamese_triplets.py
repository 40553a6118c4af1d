"""Siamese towers that share layers; each row is an anchor, a positive and a negative (a triplet)."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EXPECT = "equal"


class Siamese(keras.Model):
    def __init__(self, tower, margin=0.5):
        super().__init__()
        self.tower, self.margin = tower, margin
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, triplet):
        anchor, positive, negative = (self.tower(each) for each in triplet)
        return ops.sum((anchor - positive) ** 2, -1), ops.sum((anchor - negative) ** 2, -1)

    def _loss(self, data):
        near, far = self(data)
        return ops.maximum(near - far + self.margin, 0.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._loss(data)
        gradients = tape.gradient(loss, self.tower.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.tower.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


rng = np.random.default_rng(13)
triplets = tuple(rng.normal(size=(38, 5)) for _ in range(3))
tower = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(3), layers.UnitNormalization()])
model = Siamese(tower)
dataset = tf.data.Dataset.from_tensor_slices(triplets).batch(16)
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(dataset, epochs=2, verbose=0)
