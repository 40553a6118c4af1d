"""A vision transformer: patches, a learned class token that goes in front of each row's, and attention."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"


class Patches(layers.Layer):
    def __init__(self, size, width):
        super().__init__()
        self.cut = layers.Conv2D(width, size, strides=size)
        self.width = width

    def build(self, shape):
        self.cut.build(shape)
        patches = (shape[1] // 4) * (shape[2] // 4)
        self.token = self.add_weight(shape=(1, 1, self.width), initializer="random_normal")
        self.place = self.add_weight(shape=(1, patches + 1, self.width), initializer="random_normal")

    def call(self, images):
        patches = ops.reshape(self.cut(images), (ops.shape(images)[0], -1, self.width))
        token = ops.broadcast_to(self.token, (ops.shape(images)[0], 1, self.width))
        return ops.concatenate([token, patches], axis=1) + self.place


inputs = keras.Input((8, 8, 1))
x = Patches(4, 6)(inputs)
normal = layers.LayerNormalization()(x)
x = x + layers.MultiHeadAttention(2, 3)(normal, normal)
model = keras.Model(inputs, layers.Dense(2)(x[:, 0]))
rng = np.random.default_rng(5)
model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(rng.random((37, 8, 8, 1)), rng.integers(0, 2, 37), batch_size=16, epochs=2, verbose=0)
