"""Regularizers of kernels, biases and activities, and constraints."""

import keras
import numpy as np
from keras import layers, regularizers

EXPECT = "equal"

rng = np.random.default_rng(2)
model = keras.Sequential(
    [
        keras.Input((5,)),
        layers.Dense(6, "relu", kernel_regularizer=regularizers.L1L2(1e-3, 1e-2), kernel_constraint="max_norm"),
        layers.Dense(4, "tanh", activity_regularizer=regularizers.L2(0.05), bias_regularizer="l2"),
        layers.ActivityRegularization(l1=0.01),
        layers.Dense(1, kernel_regularizer=regularizers.L1(0.01)),
    ]
)
model.compile("adam", "mse")
history = model.fit(rng.normal(size=(39, 5)), rng.normal(size=(39, 1)), batch_size=16, epochs=2, verbose=0)
