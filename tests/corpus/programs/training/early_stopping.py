"""Training ends when the validation loss no longer falls, and the best weights come back."""

import keras
import numpy as np

EXPECT = "equal"

rng = np.random.default_rng(7)
x, y = rng.normal(size=(60, 4)), rng.normal(size=(60, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.3), "mse")
stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, restore_best_weights=True)
history = model.fit(x, y, batch_size=16, epochs=12, validation_split=0.4, callbacks=[stopping], verbose=0)
epochs, stopped = len(history.history["loss"]), stopping.stopped_epoch
