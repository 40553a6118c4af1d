"""A whole epoch in one tf.function: it iterates the dataset itself and keeps a running mean."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

rng = np.random.default_rng(1)
x, y = (rng.normal(size=(44, n)).astype(keras.config.floatx()) for n in (4, 1))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
optimizer, mean_loss = keras.optimizers.Adam(0.01), keras.metrics.Mean()


@tf.function
def epoch(data):
    for batch_x, batch_y in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch_y - model(batch_x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
        mean_loss.update_state(loss)


losses = []
for _ in range(2):
    mean_loss.reset_state()
    epoch(dataset)
    losses.append(float(mean_loss.result()))
