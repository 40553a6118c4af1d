"""Segmentation by Keras's Dice loss, which is one number of a whole batch."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(11)
images = rng.random((37, 6, 6, 1))
masks = (images + 0.2 * rng.random(images.shape) > 0.6).astype("int64")
model = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        layers.Conv2D(4, 3, padding="same", activation="elu"),
        layers.Conv2D(1, 1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), keras.losses.Dice(), metrics=[keras.metrics.BinaryIoU([1], threshold=0.5)])
history = model.fit(images, masks, batch_size=16, epochs=2, verbose=0)
