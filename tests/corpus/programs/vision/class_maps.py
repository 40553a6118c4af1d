"""Which pixels speak for a class: gradients of a trained model's output by its inputs, computed afterwards."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(6)
images, labels = rng.random((36, 6, 6, 1)), rng.integers(0, 3, 36)
inputs = keras.Input((6, 6, 1))
maps = layers.Conv2D(4, 3, activation="elu", name="maps")(inputs)
model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(maps)))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(images, labels, batch_size=16, verbose=0)

looking = keras.Model(model.inputs, [model.get_layer("maps").output, model.output])
with tf.GradientTape() as tape:
    shown, scores = looking(images[:3])
    score = scores[:, 1]
weights = tf.reduce_mean(tape.gradient(score, shown), axis=(1, 2), keepdims=True)
heat = tf.nn.relu(tf.reduce_sum(weights * shown, axis=-1)).numpy()
