"""Mixup inside the train_step: each row is blended with another row of its batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

EXPECT = "refused: mixes the rows of a batch"


class Mixup(keras.Model):
    def train_step(self, data):
        x, y = data
        share = 0.3
        x = (1 - share) * x + share * ops.flip(x, axis=0)
        y = (1 - share) * y + share * ops.flip(y, axis=0)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


rng = np.random.default_rng(4)
x, y = rng.normal(size=(40, 5)), rng.random((40, 2))
inputs = keras.Input((5,))
model = Mixup(inputs, keras.layers.Dense(2, "sigmoid")(keras.layers.Dense(6, "relu")(inputs)))
model.compile("sgd", "binary_crossentropy")
model.fit(x, y, batch_size=16, verbose=0)
