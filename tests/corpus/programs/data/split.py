"""keras.utils.split_dataset parts arrays in two with a seed; to_categorical makes the targets."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(4)
x = rng.normal(size=(50, 4))
y = keras.utils.to_categorical(rng.integers(0, 3, 50), 3)
train, test = keras.utils.split_dataset((x, y), left_size=0.7, shuffle=True, seed=6)
model = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(3, "softmax")])
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(train.batch(16), validation_data=test.batch(16), epochs=2, verbose=0)
