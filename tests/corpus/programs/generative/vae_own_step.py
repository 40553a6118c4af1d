"""A variational autoencoder: a sampling layer, and a train_step that adds what the code costs."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

EXPECT = "expectation"


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        epsilon = keras.random.normal(shape=ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * epsilon


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.trackers = [keras.metrics.Mean(name=name) for name in ("loss", "reconstruction", "kl")]

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var, code = self.encoder(data)
            apart = ops.sum(keras.losses.binary_crossentropy(data, self.decoder(code)), axis=-1)
            reconstruction = ops.mean(apart)
            kl = ops.mean(ops.sum(-0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var)), axis=1))
            total = reconstruction + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for tracker, value in zip(self.trackers, (total, reconstruction, kl), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


images = keras.Input((4, 4))
hidden = layers.Dense(8, activation="relu")(layers.Flatten()(images))
z_mean, z_log_var = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
encoder = keras.Model(images, [z_mean, z_log_var, Sampling()([z_mean, z_log_var])])
decoder = keras.Sequential(
    [keras.Input((2,)), layers.Dense(8, "relu"), layers.Dense(16, "sigmoid"), layers.Reshape((4, 4))]
)
vae = VAE(encoder, decoder)
vae.compile(optimizer=keras.optimizers.Adam())
history = vae.fit(np.random.default_rng(0).random((40, 4, 4)), epochs=2, batch_size=16, verbose=0)
