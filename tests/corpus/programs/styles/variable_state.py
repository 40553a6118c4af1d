"""A model whose state is a tf.Variable: it counts its steps and warms its output up by them."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"


class WarmUp(keras.Model):
    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0, trainable=False, dtype=tf.int32)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        if training:
            self.calls.assign_add(1)
        gain = 1.0 - 0.5 ** (1.0 + tf.cast(self.calls, inputs.dtype))
        return gain * self.dense(inputs)


rng = np.random.default_rng(6)
x, y = rng.normal(size=(37, 3)), rng.normal(size=37)
model = WarmUp()
model.compile("adam", "mae")
model.fit(x, y, batch_size=16, epochs=2, verbose=0)
steps = model.calls
