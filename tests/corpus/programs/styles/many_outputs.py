"""Two inputs and two outputs by name, each with a loss, a metric and a weight of its own."""

import keras
import numpy as np
from keras import layers

EXPECT = "equal"

rng = np.random.default_rng(1)
title, tags = rng.normal(size=(45, 5)), rng.integers(0, 2, size=(45, 4))
urgency, team = rng.random((45, 1)), rng.integers(0, 3, size=45)

title_in, tags_in = keras.Input((5,), name="title"), keras.Input((4,), name="tags")
merged = layers.concatenate([layers.Dense(6, activation="tanh")(title_in), tags_in])
outputs = {
    "urgency": layers.Dense(1, activation="sigmoid", name="urgency")(merged),
    "team": layers.Dense(3, name="team")(merged),
}
model = keras.Model({"title": title_in, "tags": tags_in}, outputs)
model.compile(
    keras.optimizers.RMSprop(0.01),
    loss={
        "urgency": keras.losses.BinaryCrossentropy(),
        "team": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"urgency": 1.0, "team": 0.3},
    metrics={"urgency": ["mae"], "team": ["accuracy"]},
)
history = model.fit(
    {"title": title, "tags": tags}, {"urgency": urgency, "team": team}, batch_size=16, epochs=2, verbose=0
)
