"""A mixture density network: means, widths and weights of Gaussians for each row, fitted by their likelihood."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"

COMPONENTS = 3
inputs = keras.Input((1,))
hidden = layers.Dense(8, activation="tanh")(inputs)
parts = [layers.Dense(COMPONENTS)(hidden), layers.Dense(COMPONENTS)(hidden), layers.Dense(COMPONENTS)(hidden)]
model = keras.Model(inputs, layers.Concatenate()(parts))


def likelihood(y_true, y_pred):
    mean, log_width, logits = ops.split(y_pred, 3, axis=-1)
    apart = (ops.cast(y_true, y_pred.dtype) - mean) * ops.exp(-log_width)
    return -ops.logsumexp(ops.log_softmax(logits, axis=-1) - 0.5 * apart**2 - log_width, axis=-1)


rng = np.random.default_rng(9)
y = rng.uniform(-1, 1, size=(40, 1))
x = y + 0.3 * np.sin(7 * y)
model.compile(keras.optimizers.Adam(0.01), likelihood)
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
