"""A FeatureSpace, adapted to a dataset and mapped over it, with crossed and binned features."""

import keras
import numpy as np
import tensorflow as tf
from keras.utils import FeatureSpace

EXPECT = "equal"

rng = np.random.default_rng(3)
table = {"age": rng.integers(20, 70, 40), "bmi": rng.normal(25.0, 4.0, 40), "kind": rng.choice(["a", "b", "c"], 40)}
sick = (table["bmi"] > 25).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((table, sick))

space = FeatureSpace(
    features={
        "age": FeatureSpace.float_discretized(num_bins=4),
        "bmi": FeatureSpace.float_normalized(),
        "kind": FeatureSpace.string_categorical(num_oov_indices=0),
    },
    crosses=[FeatureSpace.cross(("age", "kind"), crossing_dim=8)],
    output_mode="concat",
)
space.adapt(dataset.map(lambda features, label: features))
ready = dataset.batch(16).map(lambda features, label: (space(features), label))
encoded = space.get_encoded_features()
model = keras.Model(encoded, keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(5, "relu")(encoded)))
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(ready, epochs=2, verbose=0)
