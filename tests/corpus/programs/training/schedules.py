"""A learning rate that warms up and decays with the steps, another that follows the epochs, a third the loss."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(5)
x, y = rng.normal(size=(43, 4)), rng.integers(0, 2, 43)
decay = keras.optimizers.schedules.CosineDecay(0.001, 6, warmup_target=0.05, warmup_steps=2)
first = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
first.compile(keras.optimizers.Adam(decay), keras.losses.BinaryCrossentropy(from_logits=True))
one = first.fit(x, y, batch_size=16, epochs=2, verbose=0)

second = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
second.compile("nadam", "binary_crossentropy", metrics=["AUC"])
callbacks = [
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5**epoch),
    keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=10.0),
]
two = second.fit(x, y, batch_size=16, epochs=3, callbacks=callbacks, verbose=0)
