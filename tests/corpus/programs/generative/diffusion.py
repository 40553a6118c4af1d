"""A denoising diffusion model: rows are noised by times that are drawn, a network guesses the noise, an EMA follows."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EXPECT = "expectation"


class Diffusion(keras.Model):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.ema_network = keras.models.clone_model(network)
        self.noise_loss = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self):
        return [self.noise_loss]

    def train_step(self, rows):
        rows = ops.cast(rows, self.compute_dtype)
        noise = keras.random.normal(shape=ops.shape(rows), dtype=rows.dtype)
        times = keras.random.uniform(shape=(ops.shape(rows)[0], 1), dtype=rows.dtype)
        angle = 0.1 + 1.3 * times
        noisy = ops.cos(angle) * rows + ops.sin(angle) * noise
        with tf.GradientTape() as tape:
            guessed = self.network([noisy, ops.sin(angle) ** 2], training=True)
            loss = ops.mean(self.loss_fn(noise, guessed))
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss.update_state(loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(0.9 * ema_weight + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics}

    loss_fn = staticmethod(keras.losses.mean_absolute_error)


noisy, level = keras.Input((3,)), keras.Input((1,))
network = keras.Model([noisy, level], layers.Dense(3)(layers.Dense(8, "swish")(layers.concatenate([noisy, level]))))
model = Diffusion(network)
model.compile(optimizer=keras.optimizers.AdamW(0.01, weight_decay=1e-4))
history = model.fit(np.random.default_rng(10).normal(size=(37, 3)), batch_size=16, epochs=2, verbose=0)
