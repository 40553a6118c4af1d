"""A layer, an activation, a loss and a metric in keras.ops alone, as programs for several backends are written."""

import keras
import numpy as np
from keras import ops

EXPECT = "equal"


class Linear(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform")
        self.b = self.add_weight(shape=(self.units,), initializer="zeros")

    def call(self, x):
        return ops.matmul(x, self.w) + self.b


class MeanRatio(keras.metrics.Metric):
    def __init__(self, name="ratio"):
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.cast(y_true > y_pred, self.dtype)))
        self.count.assign_add(ops.cast(ops.size(y_true), self.dtype))

    def result(self):
        return self.total / self.count


def log_cosh(y_true, y_pred):
    return ops.mean(ops.log(ops.cosh(y_pred - y_true)), axis=-1)


rng = np.random.default_rng(5)
x, y = rng.normal(size=(39, 4)), rng.normal(size=(39, 2))
model = keras.Sequential([Linear(6), keras.layers.Activation(lambda t: t * ops.sigmoid(t)), Linear(2)])
model.compile(keras.optimizers.AdamW(0.01), loss=log_cosh, metrics=[MeanRatio()])
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
