"""A model with a train_step and a test_step of its own, which give the results of compiled metrics."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"


class Regressor(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, inputs):
        return self.out(self.hidden(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.compute_loss(y=y, y_pred=y_pred)
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


rng = np.random.default_rng(2)
x, y = rng.normal(size=(44, 4)), rng.normal(size=(44, 1))
model = Regressor()
model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError(name="mae")])
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
tested = model.evaluate(x, y, verbose=0)
