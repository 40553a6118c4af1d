"""Layers that flip images and change their contrast as they train, noise and dropout."""

import keras
import numpy as np
from keras import layers

EXPECT = "expectation"

rng = np.random.default_rng(1)
images, labels = rng.random((36, 8, 8, 1)), rng.integers(0, 2, 36)
augment = keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomContrast(0.2), layers.GaussianNoise(0.1)])
inputs = keras.Input((8, 8, 1))
x = layers.Conv2D(3, 3, activation="elu")(augment(inputs))
x = layers.Dropout(0.3)(layers.Flatten()(x))
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=16, epochs=1, verbose=0)
