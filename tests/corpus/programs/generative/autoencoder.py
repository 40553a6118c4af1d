"""A convolutional autoencoder that removes noise which its data came with."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(5)
clean = rng.random((34, 8, 8, 1))
noisy = np.clip(clean + 0.3 * rng.normal(size=clean.shape), 0.0, 1.0)

inputs = keras.Input((8, 8, 1))
x = layers.Conv2D(4, 3, activation="elu", padding="same")(inputs)
x = layers.AveragePooling2D(2, padding="same")(x)
x = layers.Conv2DTranspose(4, 3, strides=2, activation="elu", padding="same")(x)
autoencoder = keras.Model(inputs, layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x))
autoencoder.compile("adam", "binary_crossentropy")
history = autoencoder.fit(
    noisy, clean, epochs=2, batch_size=16, shuffle=True, validation_data=(noisy, noisy), verbose=0
)
