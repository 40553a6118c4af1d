"""``predict`` gives every rank what one process gets, in order, and is computed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import succeeded, told
from tests.training.harness import DATA

SEVERAL = """
left, right = keras.Input((5,), name="left"), keras.Input((7,), name="right")
joined = keras.layers.Concatenate()([left, right])
model = keras.Model({"left": left, "right": right}, {"a": keras.layers.Dense(3)(joined), "b": joined[:, :1]})
given = {"left": features[:, :5], "right": features[:, 5:]}
first = model.predict(given, batch_size=10, verbose=0)
second = [model.predict(tf.constant(features[:131]), verbose=0) for model in [mlp()]][0]
normalised = keras.Sequential([keras.Input((12,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
normalised.compile("sgd", "mse")
normalised.fit(x, x[:, :2], batch_size=40, verbose=0)
third = normalised.predict(x, batch_size=7, steps=None)
"""
COUNTING = """
class Counted(keras.Sequential):
    def predict_step(self, data):
        rows.insert("seen", rows.lookup("seen") + tf.shape(data)[0])
        return super().predict_step(data)


rows = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, 0)  # a variable would be a state
model = Counted([keras.Input((12,)), keras.layers.Dense(3)])
model.compile()
"""
STATEFUL = """
@keras.saving.register_keras_serializable()
class Numbered(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight((), "zeros", trainable=False)

    def call(self, inputs):
        self.count.assign_add(1.0)
        return inputs + self.count


model = keras.Sequential([keras.Input((12,)), Numbered()])
first = model.predict(x, batch_size=10, verbose=0)
mixing = keras.Sequential([keras.Input((12,)), keras.layers.Lambda(lambda a: a - tf.reduce_mean(a, 0))])
second = mixing.predict(x, batch_size=10, verbose=0)
third = model.predict(x[:50], batch_size=10, verbose=0)
"""


UNKNOWN = """
class Noisy(keras.Model):
    def __init__(self, noise):
        super().__init__()
        self.dense, self.noise = keras.layers.Dense(3), noise

    def call(self, inputs):
        return self.noise(self.dense(inputs))


def counted(inputs):
    count.assign_add(1.0)
    return inputs * count


def shape(inputs):
    return tf.shape(inputs)


count, generator, drop = tf.Variable(0.0), tf.random.Generator.from_seed(3), keras.layers.Dropout(0.5)
noises = [
    lambda inputs: inputs + keras.random.normal(shape(inputs)),
    lambda inputs: inputs + tf.random.normal(shape(inputs)),
    lambda inputs: inputs + generator.normal(shape(inputs)),
    lambda inputs: drop(inputs, training=True),
    counted,
]
first, second = {}, {}
for name, noise in enumerate(noises):
    model = Noisy(noise)
    for eagerly in (False, True):
        model.compile(run_eagerly=eagerly)
        model(x[:2])
        first[name, eagerly] = model.predict(x, batch_size=16, verbose=0)
        second[name, eagerly] = model.predict(x, batch_size=16, verbose=0)
third = np.array([*keras.random.normal((3,)), *tf.random.normal((3,)), *generator.normal((3,)), count])
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    "cell",
    every(3, [SEVERAL, STATEFUL, UNKNOWN]),
    ids=["several inputs and outputs", "a state, and mixed rows", "states that the model does not know of"],
)
def test_predictions_of_arrays_are_those_of_one_process_on_every_rank(groups: Any, cell: str) -> None:
    names = "first", "second", "third"
    expected = groups.plain(DATA + cell, *names).values
    for outcome in succeeded(groups[3].run(DATA + cell, *names)):
        for name in names:
            _assert_same(outcome.values[name], expected[name])


def _assert_same(given: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert given.keys() == expected.keys()
        for name in expected:
            _assert_same(given[name], expected[name])
        return
    assert given.shape == expected.shape
    np.testing.assert_allclose(given, expected, atol=1e-6)


ALONE = "model.predict(x, batch_size=10, verbose=0) if tfos.rank() == 0 else None\n"
CALLS = {
    "all": ("model.predict(x, batch_size=10, verbose=0)\n", [70, 61]),
    "few": ("model.predict(x, batch_size=50, verbose=0)\nmodel.predict(x[:30], batch_size=10)\n", None),
    "other rows": ("model.predict(x + rank, batch_size=10, verbose=0)\n", None),
    "in a callback": (
        "model.compile('sgd', 'mse')\n"
        "model.fit(x[:20], x[:20, :3], verbose=0, callbacks=[keras.callbacks.LambdaCallback(\n"
        "    on_epoch_end=lambda *_: model.predict(x, batch_size=10, verbose=0))])\n",
        None,
    ),
    "on one rank": ("import tfos_magic as tfos\n" + ALONE, [131, 0]),
}


@pytest.mark.parametrize("case", every(2, CALLS))
def test_rows_are_shared_out_where_all_ranks_are_known_to_predict_the_same(groups: Any, case: str) -> None:
    body, rows = CALLS[case]
    outcomes = succeeded(
        groups[2].run(DATA + COUNTING + body + "seen = int(rows.lookup('seen'))\n", "seen", seconds=60.0)
    )
    seen = [outcome.values["seen"] for outcome in outcomes]
    if rows is not None:
        assert seen == rows
    else:
        assert seen[0] == seen[1] >= 131


FED = """
from tfos_magic.training.inputs.marks import mark_sharded


def deal(batches):
    # Row i of the DataFrame goes to rank i mod SIZE, as a feed deals.
    spec = tf.TensorSpec((None, 6, 6, 1), tf.float32), tf.TensorSpec((None,), tf.int64)
    own = [np.array([i for i in batch if i % SIZE == rank], np.int64) for batch in batches]
    dataset = tf.data.Dataset.from_generator(
        lambda: ((images[rows], labels[rows]) for rows in own), output_signature=spec
    ).apply(tf.data.experimental.assert_cardinality(len(own)))
    return mark_sharded(dataset, numbers=lambda: lambda step: own[step])


images = features[:131, :9].repeat(4, 1).reshape(131, 6, 6, 1)
model = keras.Sequential([
    keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten(),
    keras.layers.Dense(3)])
batches = np.split(np.random.default_rng(2).permutation(131), range(26, 131, 26))  # shuffled; the last has one row
"""


def test_predictions_of_a_fed_dataframe_come_in_its_order_on_every_rank(groups: Any) -> None:
    plain = "SIZE = 1\n" + DATA + FED + "first = model.predict(images, verbose=0)\nsecond, third = first[:, 0], first\n"
    cell = "SIZE = 3\n" + DATA + FED
    cell += """
import tfos_magic as tfos
train = deal(batches)
first = model.predict(train, verbose=0)
second = keras.Sequential([model, keras.layers.Lambda(lambda a: a[:, 0])]).predict(train.map(lambda a, b: a))
third = model.predict(tfos.shard(tf.data.Dataset.from_tensor_slices(images).batch(26)).cache(), verbose=0)
part = model.predict(train.skip(2).take(1), verbose=0)
wanted = first[np.sort(batches[2])]
"""
    expected = groups.plain(plain, "first", "second", "third").values
    for outcome in succeeded(groups[3].run(cell, "first", "second", "third", "part", "wanted")):
        for name, values in expected.items():
            np.testing.assert_allclose(outcome.values[name], values, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(outcome.values["part"], outcome.values["wanted"], atol=1e-6)


DRAWN = "keras.Sequential([model, keras.layers.Lambda(lambda a: a + keras.random.normal((1, 3)))])"


def test_random_numbers_in_predictions_of_a_fed_dataframe_are_told_of(groups: Any) -> None:
    cell = "SIZE = 2\n" + DATA + FED + f"first = {DRAWN}.predict(deal(batches), verbose=0)\n"
    outcomes, notices = told(groups[2], cell, "first")
    assert np.array_equal(*[outcome.values["first"] for outcome in succeeded(outcomes)])
    assert any("Random numbers in predict()" in notice for notice in notices)


REFUSED = {
    "shuffled in the cell": ("model.predict(deal(batches).shuffle(5, seed=1), verbose=0)", "belongs to which row"),
    "no row each": (
        "keras.Sequential([model, keras.layers.Lambda(lambda a: tf.reduce_sum(a, 0, keepdims=True))])"
        ".predict(deal(batches), verbose=0)",
        "prediction for each row",
    ),
    "filtered": ("model.predict(deal(batches).filter(lambda a, b: b[0] > 0), verbose=0)", "df.filter"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_predictions_that_cannot_be_put_in_order_are_refused(groups: Any, case: str) -> None:
    body, remedy = REFUSED[case]
    for outcome in groups[2].run("SIZE = 2\n" + DATA + FED + body):
        assert outcome.kind == "TrainingError", outcome.error
        assert remedy in outcome.error
