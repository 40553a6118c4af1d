"""A small residual network with batch normalisation and separable convolutions."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

inputs = keras.Input((8, 8, 3))
x = layers.Rescaling(1.0 / 255)(inputs)
x = layers.Conv2D(4, 3, strides=2, padding="same")(x)
x = before = layers.Activation("elu")(layers.BatchNormalization()(x))
x = layers.SeparableConv2D(6, 3, padding="same")(x)
x = layers.BatchNormalization(momentum=0.8)(x)
x = layers.add([x, layers.Conv2D(6, 1, padding="same")(before)])
model = keras.Model(inputs, layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling2D()(x)))

rng = np.random.default_rng(0)
images, labels = rng.integers(0, 256, size=(37, 8, 8, 3)).astype("uint8"), rng.integers(0, 3, 37)
model.compile(keras.optimizers.SGD(3e-2, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images, labels, batch_size=16, epochs=2, validation_split=0.2, verbose=0)
