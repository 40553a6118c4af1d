"""Boxes and classes from one body; a box counts only where there is an object, by a compute_loss of its own."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"


class Detector(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = keras.Sequential([layers.Conv2D(4, 3, activation="elu"), layers.Flatten(), layers.Dense(8, "relu")])
        self.box, self.kind = layers.Dense(4), layers.Dense(3)

    def call(self, images):
        seen = self.body(images)
        return {"box": self.box(seen), "kind": self.kind(seen)}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        there = ops.cast(y["kind"] > 0, y_pred["box"].dtype)
        apart = ops.abs(ops.cast(y["box"], there.dtype) - y_pred["box"])
        smooth = ops.where(apart < 1.0, 0.5 * apart**2, apart - 0.5)
        of_kind = keras.losses.sparse_categorical_crossentropy(y["kind"], y_pred["kind"], from_logits=True)
        return ops.mean(there * ops.sum(smooth, axis=-1) + of_kind)


rng = np.random.default_rng(3)
images = rng.random((37, 8, 8, 1))
truth = {"box": rng.random((37, 4)), "kind": rng.integers(0, 3, 37)}
model = Detector()
model.compile("adam")
history = model.fit(images, truth, batch_size=16, epochs=2, verbose=0)
