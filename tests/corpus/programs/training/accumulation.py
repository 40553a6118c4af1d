"""The optimizer takes a step from every two batches, by its own gradient accumulation."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(4)
x, y = rng.normal(size=(60, 4)), rng.normal(size=(60, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "gelu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2), "mse")
history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
