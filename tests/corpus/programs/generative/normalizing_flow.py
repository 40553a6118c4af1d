"""A real-valued flow: coupling layers with masks, trained on the log-likelihood of its rows."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EXPECT = "equal"


def coupling():
    inputs = keras.Input((2,))
    scale = layers.Dense(2, activation="tanh")(layers.Dense(6, activation="tanh")(inputs))
    shift = layers.Dense(2)(layers.Dense(6, activation="tanh")(inputs))
    return keras.Model(inputs, [scale, shift])


class Flow(keras.Model):
    def __init__(self, count):
        super().__init__()
        self.masks = [[float(i % 2), float(1 - i % 2)] for i in range(count)]
        self.couplings = [coupling() for _ in range(count)]
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        log_det = 0.0
        for mask, layer in zip(self.masks, self.couplings, strict=True):
            mask = ops.convert_to_tensor(mask, x.dtype)
            kept = x * mask
            scale, shift = layer(kept)
            scale, shift = scale * (1 - mask), shift * (1 - mask)
            x = (1 - mask) * (x - shift) * ops.exp(-scale) + kept
            log_det -= ops.sum(scale, axis=1)
        return x, log_det

    def log_loss(self, x):
        z, log_det = self(x)
        density = -0.5 * ops.sum(z**2, axis=1) - np.log(2 * np.pi)
        return -ops.mean(density + log_det)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.log_loss(ops.cast(data, self.compute_dtype))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


rows = np.random.default_rng(8).normal(size=(43, 2)) @ np.array([[1.0, 0.8], [0.0, 0.5]])
model = Flow(2)
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(rows, batch_size=16, epochs=2, verbose=0)
