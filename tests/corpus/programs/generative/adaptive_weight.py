"""An autoencoder with a critic, whose weight is the ratio of two gradients' lengths, as VQGAN weighs its critic."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "refused: mixes the rows of a batch"


class Weighted(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(3, activation="tanh")
        self.decoder = keras.layers.Dense(5)
        self.critic = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.critic(self.decoder(self.encoder(x)))

    def train_step(self, x):
        with tf.GradientTape(persistent=True) as tape:
            made = self.decoder(self.encoder(x))
            distance = tf.reduce_mean(tf.abs(made - x))
            doubt = -tf.reduce_mean(tf.nn.softplus(self.critic(made)))
            with tape.stop_recording():
                pull, push = (tape.gradient(loss, self.decoder.kernel) for loss in (distance, doubt))
                weight = tf.norm(pull) / (tf.norm(push) + 1e-4)
            loss = distance + tf.clip_by_value(weight, 0.0, 1e4) * doubt
        variables = self.encoder.trainable_variables + self.decoder.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.seen.update_state(loss)
        return {"loss": self.seen.result()}

    @property
    def metrics(self):
        return [self.seen]


x = np.random.default_rng(4).normal(size=(48, 5)).astype(keras.config.floatx())
model = Weighted()
model.compile(optimizer=keras.optimizers.SGD(0.05))
model(x[:1])
history = model.fit(x, batch_size=16, epochs=2, verbose=0)
