"""A model made and compiled in the scope of a MirroredStrategy, its batch size by the number of replicas."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"
NOTICE = "tf.distribute.MirroredStrategy of the cell"

strategy = tf.distribute.MirroredStrategy()
batch_size = 16 * strategy.num_replicas_in_sync
rng = np.random.default_rng(15)
x, y = rng.normal(size=(42, 4)), rng.normal(size=(42, 1))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
history = model.fit(dataset, epochs=2, verbose=0)
