"""A neural differential equation: a call() that takes Euler steps in a tf.while_loop, trained by fit."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"


class Flow(keras.layers.Layer):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.slope = keras.layers.Dense(3, activation="tanh")

    def build(self, shape):
        self.slope.build(shape)

    def call(self, x):
        def body(i, state):
            return i + 1, state + self.slope(state) / self.steps

        return tf.while_loop(lambda i, state: i < self.steps, body, (0, x))[1]


rng = np.random.default_rng(11)
model = keras.Sequential([keras.Input((3,)), Flow(4), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(rng.normal(size=(37, 3)), rng.normal(size=(37, 1)), batch_size=16, epochs=2, verbose=0)
