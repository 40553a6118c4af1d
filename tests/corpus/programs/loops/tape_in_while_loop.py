"""Some steps at a time in a tf.while_loop, with the tape in its body and batches by their place."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

rng = np.random.default_rng(5)
x, y = (tf.constant(rng.normal(size=(48, n)).astype(keras.config.floatx())) for n in (4, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
optimizer.build(model.trainable_variables)


@tf.function
def some_steps(count):
    def body(i, total):
        rows, targets = x[16 * i : 16 * i + 16], y[16 * i : 16 * i + 16]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(rows) - targets) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return i + 1, total + loss

    return tf.while_loop(lambda i, total: i < count, body, (0, tf.zeros((), x.dtype)))


totals = [float(some_steps(3)[1]) for _ in range(2)]
