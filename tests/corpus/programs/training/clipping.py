"""Gradients clipped by their common norm, Nesterov momentum, an average of weights, decoupled decay."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(3)
x, y = rng.normal(size=(46, 4)), 20 * rng.normal(size=(46, 2))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "selu"), keras.layers.Dense(2)])
optimizer = keras.optimizers.SGD(
    0.05, momentum=0.9, nesterov=True, global_clipnorm=1.0, use_ema=True, ema_momentum=0.8, weight_decay=1e-3
)
model.compile(optimizer, "mse")
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
