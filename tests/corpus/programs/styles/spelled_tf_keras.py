"""Everything by its older spelling, tf.keras, as books have it."""

import numpy as np
import tensorflow as tf

EXPECT = "equal"

tf.keras.utils.set_random_seed(4)
x_train = np.random.rand(48, 4, 4)
y_train = np.random.randint(0, 3, size=48)

model = tf.keras.models.Sequential(
    [
        tf.keras.layers.Input(shape=(4, 4)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(9, activation="relu"),
        tf.keras.layers.Dense(3),
    ]
)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9), loss=loss_fn, metrics=["accuracy"])
history = model.fit(tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(48, seed=1).batch(20), epochs=2)
with_softmax = tf.keras.Sequential([model, tf.keras.layers.Softmax()])
shown = with_softmax(x_train[:5]).numpy()
