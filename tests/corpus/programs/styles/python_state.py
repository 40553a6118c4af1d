"""An eager model that counts its steps, keeps its losses and divides by a counter, all in Python."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"
NOTICE = "The steps run eagerly"


class Counting(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.last = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)
        self.steps, self.losses_seen, self.by_kind = 0, [], {"all": 0}

    def call(self, x):
        return self.last(self.hidden(x))

    def train_step(self, data):
        x, y = data
        self.steps += 1
        self.by_kind["all"] += 1
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) / self.steps
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.losses_seen.append(1.0)
        return {"loss": loss}


rng = np.random.default_rng(6)
x = rng.normal(size=(50, 6)).astype(keras.config.floatx())
y = 2 * x[:, :1] - x[:, 1:2]
model = Counting()
model.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=True)
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
counted = np.array([model.steps, len(model.losses_seen), model.by_kind["all"]], float)
