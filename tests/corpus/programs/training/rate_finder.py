"""A learning-rate finder: the rate grows after each batch, and the losses of batches are written down."""

import keras
import numpy as np

EXPECT = "equal"


class RateFinder(keras.callbacks.Callback):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.rates, self._seen = factor, [], []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))
        self._seen.append(logs["loss"])
        self.model.optimizer.learning_rate = self.rates[-1] * self.factor


rng = np.random.default_rng(9)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-4), "mse")
finder = RateFinder(2.0)
model.fit(rng.normal(size=(70, 4)), rng.normal(size=(70, 1)), batch_size=16, callbacks=[finder], verbose=0)
rates = finder.rates
