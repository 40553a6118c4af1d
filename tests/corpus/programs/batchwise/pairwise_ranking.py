"""A ranking loss over all pairs of a batch. A bias would change nothing: its gradient would be rounding alone."""

import keras
import numpy as np
from keras import ops

EXPECT = "equal"


class PairwiseHinge(keras.losses.Loss):
    def call(self, y_true, y_pred):
        better = ops.cast(y_true - ops.transpose(y_true) > 0, y_pred.dtype)
        hinge = ops.maximum(1.0 - (y_pred - ops.transpose(y_pred)), 0.0)
        return ops.sum(better * hinge, axis=1) / (ops.sum(better, axis=1) + 1.0)


rng = np.random.default_rng(9)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1, use_bias=False)])
model.compile("adam", PairwiseHinge())
model.fit(rng.normal(size=(40, 3)), rng.random((40, 1)), batch_size=16, verbose=0)
