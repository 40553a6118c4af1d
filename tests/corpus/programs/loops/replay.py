"""Deep Q-learning on a toy walk: a buffer of NumPy rows, draws from it, a target network set now and then."""

import random
from collections import deque

import keras
import numpy as np
import tensorflow as tf

EXPECT = "equal"

random.seed(9)
np.random.seed(9)
dtype = keras.config.floatx()
network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
target = keras.models.clone_model(network)
target.set_weights(network.get_weights())
optimizer, memory, rewards = keras.optimizers.Adam(0.01), deque(maxlen=100), []

state = np.zeros(2)
for time in range(40):
    best = int(np.argmax(network(state[None]).numpy()[0]))
    action = random.randrange(2) if random.random() < 0.5 else best
    following = np.clip(state + (2 * action - 1) * np.array([0.1, 0.02]) + 0.01 * np.random.randn(2), -1, 1)
    rewards.append(float(following[0]))
    memory.append((state, action, rewards[-1], following))
    state = following
    if time >= 30 and time % 3 == 0:
        states, actions, gains, followings = map(np.array, zip(*random.sample(memory, 12), strict=True))
        wanted = gains.astype(dtype) + 0.9 * target.predict(followings, verbose=0).max(axis=1)
        with tf.GradientTape() as tape:
            values = tf.reduce_sum(network(states) * tf.one_hot(actions, 2, dtype=dtype), axis=1)
            loss = keras.losses.Huber()(wanted, values)
        grads = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(grads, network.trainable_variables, strict=True))
        target.set_weights(network.get_weights())
