"""Wide and deep: crossed and hashed categories beside a network over normalised numbers."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(0)
age, income = rng.integers(18, 80, 44), rng.normal(50.0, 20.0, 44)
city = rng.choice(["Bonn", "Lyon", "Oslo"], 44)
bought = (income > 50).astype("int64")

numbers = np.stack([age, income], axis=1).astype("float32")
normalize = layers.Normalization()
normalize.adapt(numbers)
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(city)

number_in, city_in = keras.Input((2,), name="numbers"), keras.Input((4,), name="city")
deep = layers.Dense(6, "relu")(layers.concatenate([normalize(number_in), city_in]))
model = keras.Model([number_in, city_in], layers.Dense(1, "sigmoid")(layers.concatenate([deep, city_in])))
model.compile("ftrl", "binary_crossentropy", metrics=["accuracy", "AUC"])
one_hot = keras.ops.convert_to_numpy(lookup(city))
history = model.fit([numbers, one_hot], bought, batch_size=16, epochs=2, verbose=0)
