"""A GAN with two models and two optimizers in one train_step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EXPECT = "expectation"


class GAN(keras.Model):
    def __init__(self, discriminator, generator, width):
        super().__init__()
        self.discriminator, self.generator, self.width = discriminator, generator, width
        self.seeds = keras.random.SeedGenerator(42)
        self.d_metric, self.g_metric = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_metric, self.g_metric]

    def train_step(self, real):
        rows = ops.shape(real)[0]
        fake = self.generator(keras.random.normal((rows, self.width), seed=self.seeds))
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(ops.concatenate([fake, real], axis=0)))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))

        noise = keras.random.normal((rows, self.width), seed=self.seeds)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((rows, 1)), self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_metric.update_state(d_loss)
        self.g_metric.update_state(g_loss)
        return {"d_loss": self.d_metric.result(), "g_loss": self.g_metric.result()}


discriminator = keras.Sequential([keras.Input((4,)), layers.Dense(6), layers.LeakyReLU(0.2), layers.Dense(1)])
generator = keras.Sequential([keras.Input((3,)), layers.Dense(6, activation="relu"), layers.Dense(4)])
gan = GAN(discriminator, generator, 3)
gan.compile(
    keras.optimizers.Adam(0.003), keras.optimizers.Adam(0.001), keras.losses.BinaryCrossentropy(from_logits=True)
)
history = gan.fit(np.random.default_rng(2).normal(2.0, 0.5, size=(38, 4)), batch_size=16, epochs=2, verbose=0)
