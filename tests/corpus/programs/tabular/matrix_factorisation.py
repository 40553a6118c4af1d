"""Ratings as products of embeddings of users and films, with a bias for each, in a subclassed model."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"


class Recommender(keras.Model):
    def __init__(self, users, films, width):
        super().__init__()
        of = {"embeddings_initializer": "he_normal", "embeddings_regularizer": keras.regularizers.l2(1e-4)}
        self.user, self.user_bias = layers.Embedding(users, width, **of), layers.Embedding(users, 1)
        self.film, self.film_bias = layers.Embedding(films, width, **of), layers.Embedding(films, 1)

    def call(self, pairs):
        user, film = pairs[:, 0], pairs[:, 1]
        together = ops.sum(self.user(user) * self.film(film), axis=1, keepdims=True)
        return ops.sigmoid(together + self.user_bias(user) + self.film_bias(film))


rng = np.random.default_rng(2)
pairs = np.stack([rng.integers(0, 8, 50), rng.integers(0, 12, 50)], axis=1)
ratings = rng.random((50, 1))
model = Recommender(8, 12, 4)
model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy())
history = model.fit(pairs, ratings, batch_size=16, epochs=2, validation_data=(pairs[:9], ratings[:9]), verbose=0)
