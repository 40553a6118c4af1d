"""A callback that sets the learning rate by the loss of the epoch so far, and one that stops early within an epoch."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(6)
x = rng.normal(size=(75, 4)).astype(keras.config.floatx())
y = x @ np.array([[1.0], [-2.0], [0.5], [0.0]], x.dtype)
losses = []


class ByLoss(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(float(logs["loss"]))
        self.model.optimizer.learning_rate = 0.1 * min(1.0, logs["loss"])


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if logs["mae"] < 0.6:
            self.model.stop_training = True


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=16, epochs=6, verbose=0, callbacks=[ByLoss(), Stop()])
