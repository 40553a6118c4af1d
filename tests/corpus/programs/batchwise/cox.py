"""Survival analysis: Cox's partial likelihood compares each row with all that were at risk in its batch.

A bias would change nothing: its gradient would be rounding alone.
"""

import keras
import numpy as np
from keras import ops

EXPECT = "equal"


def cox_loss(y_true, risk):
    time, event = y_true[:, 0], ops.cast(y_true[:, 1], risk.dtype)
    at_risk = ops.cast(ops.expand_dims(time, 0) >= ops.expand_dims(time, 1), risk.dtype)
    log_sum = ops.log(ops.matmul(at_risk, ops.exp(risk))[:, 0])
    return -ops.sum(event * (risk[:, 0] - log_sum)) / (ops.sum(event) + 1e-7)


rng = np.random.default_rng(3)
x = rng.normal(size=(45, 4))
y = np.stack([rng.exponential(size=45), rng.integers(0, 2, 45)], axis=1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1, use_bias=False)])
model.compile("adam", cox_loss)
model.fit(x, y, batch_size=16, verbose=0)
