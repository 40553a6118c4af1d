"""Windows of a time series, made by Keras's own helper, forecast by an LSTM."""

import keras
import numpy as np

EXPECT = "equal"

series = np.sin(np.arange(70) / 4) + 0.1 * np.random.default_rng(0).normal(size=70)
values = series[:, None].astype(keras.config.floatx())
windows = keras.utils.timeseries_dataset_from_array(
    values[:-3], values[9:], sequence_length=7, batch_size=16, shuffle=True, seed=4
)
model = keras.Sequential([keras.Input((7, 1)), keras.layers.LSTM(4), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(windows, epochs=2, verbose=0)
