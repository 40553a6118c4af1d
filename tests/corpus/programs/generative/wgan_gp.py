"""A Wasserstein GAN: critic steps in a row, and a penalty on the norm of gradients between real and fake rows."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "expectation"


class WGAN(keras.Model):
    def __init__(self, critic, generator, width, extra_steps=2, weight=10.0):
        super().__init__()
        self.critic, self.generator, self.width = critic, generator, width
        self.extra_steps, self.weight = extra_steps, weight

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def gradient_penalty(self, rows, real, fake):
        alpha = tf.random.uniform([rows, 1], 0.0, 1.0, dtype=real.dtype)
        between = real + alpha * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            judged = self.critic(between, training=True)
        slopes = tape.gradient(judged, between)
        norm = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=1) + 1e-12)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real):
        real = tf.cast(real, self.compute_dtype)
        rows = tf.shape(real)[0]
        for _ in range(self.extra_steps):
            noise = tf.random.normal(shape=(rows, self.width), dtype=real.dtype)
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                cost = tf.reduce_mean(self.critic(fake, training=True)) - tf.reduce_mean(self.critic(real))
                d_loss = cost + self.weight * self.gradient_penalty(rows, real, fake)
            gradients = tape.gradient(d_loss, self.critic.trainable_variables)
            self.d_optimizer.apply_gradients(zip(gradients, self.critic.trainable_variables, strict=True))
        noise = tf.random.normal(shape=(rows, self.width), dtype=real.dtype)
        with tf.GradientTape() as tape:
            g_loss = -tf.reduce_mean(self.critic(self.generator(noise, training=True), training=True))
        gradients = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_variables, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


critic = keras.Sequential([keras.Input((4,)), layers.Dense(7, activation="swish"), layers.Dense(1)])
generator = keras.Sequential([keras.Input((3,)), layers.Dense(7, activation="swish"), layers.Dense(4)])
wgan = WGAN(critic, generator, 3)
wgan.compile(keras.optimizers.Adam(0.002, beta_1=0.5), keras.optimizers.Adam(0.002, beta_1=0.5))
wgan.fit(np.random.default_rng(3).normal(size=(36, 4)), batch_size=16, epochs=1, verbose=0)
