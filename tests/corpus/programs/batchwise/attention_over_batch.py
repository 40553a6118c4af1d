"""A softmax over axis 0, by mistake: the rows of a batch compete for one attention."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "refused: mixes the rows of a batch"

inputs = keras.Input((4,))
scores = layers.Dense(1)(inputs)
weights = layers.Lambda(lambda t: ops.softmax(t, axis=0))(scores)
model = keras.Model(inputs, layers.Dense(2)(inputs * weights))
rng = np.random.default_rng(7)
model.compile("adam", "mse")
model.fit(rng.normal(size=(40, 4)), rng.normal(size=(40, 2)), batch_size=16, verbose=0)
