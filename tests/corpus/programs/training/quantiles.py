"""Quantile regression: one model, three quantiles, a pinball loss for each in a loop of closures."""

import keras
import numpy as np
from keras import ops

EXPECT = "equal"

rng = np.random.default_rng(12)
x = rng.uniform(-1, 1, size=(44, 1))
y = np.sin(3 * x) + 0.3 * rng.normal(size=x.shape)


def pinball(quantile):
    def loss(y_true, y_pred):
        error = ops.cast(y_true, y_pred.dtype) - y_pred
        return ops.mean(ops.maximum(quantile * error, (quantile - 1) * error), axis=-1)

    return loss


inputs = keras.Input((1,))
hidden = keras.layers.Dense(8, "tanh")(inputs)
model = keras.Model(inputs, [keras.layers.Dense(1)(hidden) for _ in range(3)])
model.compile("adam", [pinball(q) for q in (0.1, 0.5, 0.9)])
history = model.fit(x, [y, y, y], batch_size=16, epochs=2, verbose=0)
