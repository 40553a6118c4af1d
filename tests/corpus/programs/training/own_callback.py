"""A callback of one's own writes down the learning rate and a weight after each epoch, and ends the training."""

import keras
import numpy as np

EXPECT = "equal"


class Diary(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates, self.norms = [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1 + epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))
        self.norms.append(float(np.linalg.norm(self.model.layers[0].get_weights()[0])))
        if logs["loss"] < 100 and epoch == 2:
            self.model.stop_training = True


rng = np.random.default_rng(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
diary = Diary()
history = model.fit(
    rng.normal(size=(40, 4)), rng.normal(size=(40, 1)), batch_size=16, epochs=6, callbacks=[diary], verbose=0
)
rates, norms = diary.rates, diary.norms
