"""Retrieval with two towers whose loss compares their outputs: the other rows are each user's wrong answers."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "equal"

user, item = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
pairs = layers.Concatenate()([layers.Embedding(12, 4)(user), layers.Embedding(20, 4)(item)])
model = keras.Model([user, item], pairs)


def in_batch_softmax(y_true, outputs):
    users, items = ops.split(outputs, 2, axis=1)
    labels = ops.arange(ops.shape(users)[0])
    scores = ops.matmul(users, ops.transpose(items))
    return keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)


rng = np.random.default_rng(2)
users, items = rng.integers(0, 12, 40), rng.integers(0, 20, 40)
model.compile("adagrad", in_batch_softmax)
model.fit([users, items], np.zeros(40), batch_size=16, epochs=2, verbose=0)
