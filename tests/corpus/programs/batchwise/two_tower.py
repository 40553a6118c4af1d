"""Retrieval with two towers: the items of the other rows are each user's wrong answers (in-batch softmax)."""

import keras
import numpy as np
from keras import layers, ops

EXPECT = "refused: mixes the rows of a batch"

user, item = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
scores = layers.Lambda(lambda pair: ops.matmul(pair[0], ops.transpose(pair[1])))(
    [layers.Embedding(12, 4)(user), layers.Embedding(20, 4)(item)]
)
model = keras.Model([user, item], scores)


def in_batch_softmax(y_true, logits):
    labels = ops.arange(ops.shape(logits)[0])
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


rng = np.random.default_rng(2)
users, items = rng.integers(0, 12, 40), rng.integers(0, 20, 40)
model.compile("adagrad", in_batch_softmax)
model.fit([users, items], np.zeros(40), batch_size=16, verbose=0)
