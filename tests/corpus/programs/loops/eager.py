"""The loop of the textbook, eagerly: a tape, an optimizer, a metric that is reset after each epoch."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

rng = np.random.default_rng(0)
x, y = rng.normal(size=(44, 4)), rng.integers(0, 3, 44)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(44, seed=1).batch(16)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(0.1)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy, accuracies, losses = keras.metrics.SparseCategoricalAccuracy(), [], []

for _epoch in range(2):
    for batch_x, batch_y in dataset:
        with tf.GradientTape() as tape:
            logits = model(batch_x, training=True)
            loss = loss_fn(batch_y, logits)
        grads = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))
        accuracy.update_state(batch_y, logits)
        losses.append(float(loss))
    accuracies.append(float(accuracy.result()))
    accuracy.reset_state()
