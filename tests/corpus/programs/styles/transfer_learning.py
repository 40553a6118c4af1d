"""A trained body is frozen under a new head, then unfrozen and tuned slowly after a second compile."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(8)
images, classes, kinds = rng.random((42, 6, 6, 1)), rng.integers(0, 4, 42), rng.integers(0, 2, (42, 1))

body = keras.Sequential(
    [keras.Input((6, 6, 1)), layers.Conv2D(4, 3, activation="elu"), layers.BatchNormalization(), layers.Flatten()]
)
first = keras.Sequential([body, layers.Dense(4)])
first.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
first.fit(images, classes, batch_size=16, verbose=0)

body.trainable = False
inputs = keras.Input((6, 6, 1))
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(body(inputs, training=False)))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
frozen = model.fit(images, kinds, batch_size=16, verbose=0)

body.trainable = True
model.compile(keras.optimizers.Adam(1e-4), "binary_crossentropy", metrics=["accuracy"])
tuned = model.fit(images, kinds, batch_size=16, verbose=0)
