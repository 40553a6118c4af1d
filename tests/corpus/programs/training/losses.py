"""Label smoothing, focal loss, Huber and a sum instead of a mean, on one model with four outputs."""

import keras
import numpy as np
from keras import layers, losses

EXPECT = "equal"

rng = np.random.default_rng(10)
x = rng.normal(size=(38, 5))
classes = np.eye(3)[rng.integers(0, 3, 38)]
targets = {"smooth": classes, "focal": classes, "huber": rng.normal(size=(38, 2)), "total": rng.normal(size=(38, 1))}
inputs = keras.Input((5,))
hidden = layers.Dense(8, "relu")(inputs)
outputs = {
    "smooth": layers.Dense(3, name="smooth")(hidden),
    "focal": layers.Dense(3, "softmax", name="focal")(hidden),
    "huber": layers.Dense(2, name="huber")(hidden),
    "total": layers.Dense(1, name="total")(hidden),
}
model = keras.Model(inputs, outputs)
model.compile(
    "adam",
    {
        "smooth": losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        "focal": losses.CategoricalFocalCrossentropy(alpha=0.4, gamma=1.5),
        "huber": losses.Huber(0.5),
        "total": losses.MeanSquaredError(reduction="sum"),
    },
)
history = model.fit(x, targets, batch_size=16, epochs=2, verbose=0)
