"""A train_step that keeps trackers of its own and computes its loss by hand, compiled with an optimizer alone."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"


class Custom(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]

    def train_step(self, data):
        x, y, sample_weight = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}


rng = np.random.default_rng(3)
x, y, importance = rng.normal(size=(40, 5)), rng.normal(size=(40, 1)), rng.random(40)
inputs = keras.Input((5,))
model = Custom(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, activation="relu")(inputs)))
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(x, y, sample_weight=importance, batch_size=16, epochs=2, shuffle=False, verbose=0)
