"""Tables that are read by rows, and by what all workers have alike, under optimizers that square their gradients."""

from __future__ import annotations

import pytest

from tests.soak import every
from tests.training.harness import DATA

CELL = """
keras.config.set_floatx("float64")
words = np.random.default_rng(0).integers(0, 30, 41)
beside = (words + np.random.default_rng(1).integers(1, 3, 41)) % 30


class Skipgram(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Embedding(30, 5)
        self.outer = self.add_weight(shape=(30, 5), name="outer")
        self.bias = self.add_weight(shape=(30,), initializer="zeros", name="bias")

    def call(self, inputs):
        return self.inner(inputs)

    {decorator}
    def error(self, labels, made):
        return {loss}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.error(tf.cast(y, tf.int64), y_pred)


model = Skipgram()
model.compile(keras.optimizers.{optimizer}(0.1))
history = model.fit(words, beside, epochs=2, batch_size=10, verbose=0).history
weights = model.get_weights()
"""
SAMPLED = "tf.constant([0, 3, 7, 11, 19], tf.int64), tf.ones([tf.shape(labels)[0], 1], tf.float64) / 9"
SAMPLED += ", tf.ones([5], tf.float64) / 9"
SOFTMAX = (
    "tf.reduce_mean(tf.nn.sampled_softmax_loss(self.outer, self.bias, labels[:, None], made, 5, 30, sampled_values=("
    + SAMPLED
    + ")))"
)
TOGETHER = (
    "tf.reduce_mean((self.inner(tf.concat([labels, [1, 2, 5]], 0))[:-3] - made) ** 2)"
    " + tf.reduce_mean(made[:, None] * self.inner(tf.concat([labels, [1, 2, 5]], 0))[-3:])"
    " + tf.reduce_sum(tf.gather(self.bias, tf.concat([[4, 5], labels], 0))[:2] ** 2 - 1) * 0.5"
)
GRAPH = "@tf.function"


CASES = {
    "sampled": (SOFTMAX, "Adagrad", "", 2),
    "sampled in a graph": (SOFTMAX, "Adam", GRAPH, 3),
    "together": (TOGETHER, "RMSprop", "", 3),
    "together in a graph": (TOGETHER, "Adam", GRAPH, 2),
}


@pytest.mark.parametrize("case", every(6, CASES))
def test_what_all_workers_read_alike_counts_once(same_as_plain, case: str) -> None:
    loss, optimizer, decorator, size = CASES[case]
    cell = CELL.format(loss=loss, optimizer=optimizer, decorator=decorator)
    same_as_plain(DATA + cell, size, tolerance=1e-10)
