"""Two compiled models, a generator and what judges it, taught in turns by train_on_batch."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(6)
judge = keras.Sequential([keras.Input((3,)), layers.Dense(6, "relu"), layers.Dense(1, "sigmoid")])
judge.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
maker = keras.Sequential([keras.Input((2,)), layers.Dense(6, "relu"), layers.Dense(3)])
judge_frozen = keras.models.clone_model(judge)
judge_frozen.trainable = False
both = keras.Sequential([maker, judge_frozen])
both.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")

logs = []
for _step in range(3):
    real, noise = rng.normal(2.0, 1.0, size=(14, 3)), rng.normal(size=(14, 2))
    made = maker.predict(noise, verbose=0)
    one = judge.train_on_batch(real, np.ones((14, 1)))
    two = judge.train_on_batch(made, np.zeros((14, 1)))
    judge_frozen.set_weights(judge.get_weights())
    three = both.train_on_batch(noise, np.ones((14, 1)))
    tested = judge.test_on_batch(real, np.ones((14, 1)))
    logs.append([*map(float, one), *map(float, two), float(three), *map(float, tested)])
