"""Fraud: a bias that begins at the log odds, weights for rare rows, and metrics of thresholds."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(6)
x = rng.normal(size=(64, 5))
y = (x[:, 0] > 1.2).astype("int64")
rare, common = y.sum(), (1 - y).sum()
model = keras.Sequential(
    [
        keras.Input((5,)),
        keras.layers.Dense(8, "relu"),
        keras.layers.Dense(1, "sigmoid", bias_initializer=keras.initializers.Constant(np.log(rare / common))),
    ]
)
metrics = [
    keras.metrics.FalseNegatives(name="fn"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
    keras.metrics.AUC(name="prc", curve="PR"),
]
model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=metrics)
weights = {0: 64 / common / 2, 1: 64 / rare / 2}
history = model.fit(x, y, batch_size=20, epochs=2, class_weight=weights, validation_split=0.25, verbose=0)
