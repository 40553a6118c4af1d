"""A subclassed model whose variables, and its optimizer's, come to be in the first call of a tf.function."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.one, self.two = keras.layers.Dense(6, activation="relu"), keras.layers.Dense(2)

    def call(self, x):
        return self.two(self.one(x))


rng = np.random.default_rng(2)
x, y = (rng.normal(size=(44, n)).astype(keras.config.floatx()) for n in (4, 2))
model, optimizer = Net(), keras.optimizers.Adam(0.01)
loss_object, train_loss = keras.losses.MeanSquaredError(), keras.metrics.Mean(name="train_loss")


@tf.function
def train_step(rows, targets):
    with tf.GradientTape() as tape:
        loss = loss_object(targets, model(rows, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    train_loss(loss)


for rows, targets in tf.data.Dataset.from_tensor_slices((x, y)).batch(16).repeat(2):
    train_step(rows, targets)
mean = float(train_loss.result())
