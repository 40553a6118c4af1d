"""A loop of one's own by strategy.run over a distributed dataset, its loss divided by the global batch."""

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"
NOTICE = "tf.distribute.MultiWorkerMirroredStrategy of the cell"

strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch = 16 * strategy.num_replicas_in_sync
rng = np.random.default_rng(16)
x, y = (rng.normal(size=(48, n)).astype(keras.config.floatx()) for n in (4, 1))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch)
distributed = strategy.experimental_distribute_dataset(dataset)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05)
    loss_object = keras.losses.MeanSquaredError(reduction="none")


def train_step(rows, targets):
    with tf.GradientTape() as tape:
        apart = loss_object(targets, model(rows, training=True))
        loss = tf.nn.compute_average_loss(apart, global_batch_size=global_batch)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def distributed_train_step(rows, targets):
    per_replica = strategy.run(train_step, args=(rows, targets))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


losses = [float(distributed_train_step(rows, targets)) for _ in range(2) for rows, targets in distributed]
