"""A loop of its own whose layers make variables of tensors, within the first call of the function that steps."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

keras.utils.set_random_seed(7)


class Affine(keras.layers.Layer):
    def build(self, shape):
        self.w = keras.Variable(keras.initializers.GlorotUniform(seed=1)((shape[-1], 4)), name="kernel")
        self.b = keras.Variable(keras.ops.zeros((4,)), name="bias")

    def call(self, x):
        return keras.ops.matmul(x, self.w) + self.b


rng = np.random.default_rng(3)
x = rng.normal(size=(60, 5)).astype(keras.config.floatx())
y = rng.normal(size=(60, 4)).astype(keras.config.floatx())
layer, optimizer = Affine(), keras.optimizers.Adam(0.02)


@tf.function
def step(rows, truth):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(layer(rows) - truth))
    variables = layer.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


losses = [float(step(x[i : i + 16], y[i : i + 16])) for _ in range(2) for i in range(0, 60, 16)]
weights = [keras.ops.convert_to_numpy(v) for v in layer.trainable_variables]
