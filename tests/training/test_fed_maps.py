"""``map()`` on a fed DataFrame, of which each worker maps its own rows: equal to one process, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded, told
from tests.training.harness import DATA, FED

VERDICTS = """
import keras
import numpy as np
import tensorflow as tf
from tfos_magic.errors import TrainingError
from tfos_magic.training.firststep.maps import paddings
from tfos_magic.training.inputs.marks import mark_sharded

draw = np.random.default_rng(0)
floats, numbers = draw.normal(size=(32, 3)).astype("float32"), draw.integers(0, 3, 32)
texts, images = np.array(["a b", "c"] * 16), draw.integers(0, 255, (32, 8, 8, 3)).astype("uint8")
targets = draw.normal(size=32)
ragged = tf.ragged.constant([[1] * (1 + i % 5) for i in range(32)])
lookup = keras.layers.StringLookup(vocabulary=["ab", "c"])
scale = tf.Variable(2.0)
pairs = tf.constant([1.0, 2.0])


running = tf.Variable(tf.zeros(3), trainable=False)
batches = tf.Variable(0.0, trainable=False)
normed = keras.layers.BatchNormalization()
normed.build((None, 3))


def fed(*columns, batch=0):
    rows = tf.data.Dataset.from_tensor_slices(columns if len(columns) > 1 else columns[0]).batch(8)
    return mark_sharded(rows, batch=batch)


def averaged(a):
    running.assign(0.9 * running + 0.1 * tf.reduce_mean(a, 0))
    return a - running


def counted(a):
    return a / batches.assign_add(1.0)


def numbered(a):
    return a / batches.assign_add(tf.cast(tf.shape(a)[0], tf.float32))


def verdict(dataset):
    try:
        return len(paddings(dataset))
    except TrainingError as error:
        return str(error)


verdicts = {name: verdict(make()) for name, make in CASES.items()}
"""

ROW_BY_ROW = """CASES = {
    "constants": lambda: fed(floats, numbers).map(lambda a, b: ((a - 1.5) / 2.0, b)),
    "one_hot": lambda: fed(floats, numbers).map(lambda a, b: (a, tf.one_hot(b, 3))),
    "casts": lambda: fed(floats, numbers).map(lambda a, b: (tf.cast(a, tf.float16), tf.cast(b, tf.int32))),
    "dicts": lambda: fed({"a": floats, "b": numbers}).map(lambda d: ({"q": d["a"], "r": {"s": d["b"]}}, d["b"])),
    "crosses": lambda: fed(numbers, texts).map(lambda a, b: keras.layers.HashedCrossing(5)((a, b))),
    "lookups": lambda: fed(texts, numbers).map(lambda a, b: (lookup(a), b)),
    "a table of few": lambda: fed(numbers, numbers).map(lambda a, b: (tf.gather(pairs, a), b)),
    "numbers in strings": lambda: fed(texts).map(lambda a: tf.strings.to_number(a)),
    "images": lambda: fed(images).map(lambda a: tf.image.resize(tf.image.adjust_contrast(a, 1.2), (4, 4))),
    "images' own means": lambda: fed(images).map(tf.image.per_image_standardization),
    "map_fn": lambda: fed(floats).map(lambda a: tf.map_fn(lambda row: row - tf.reduce_mean(row), a)),
    "vectorized_map": lambda: fed(floats).map(lambda a: tf.vectorized_map(lambda r: r - tf.reduce_mean(r), a)),
    "reshaped by rows": lambda: fed(floats).map(lambda a: tf.reshape(a, [tf.shape(a)[0], 3, 1])),
    "weights of one": lambda: fed(floats, numbers).map(lambda a, b: (a, b, tf.ones_like(b))),
    "a scalar": lambda: fed(floats, numbers).map(lambda a, b: ((a, tf.constant(3.0)), b)),
    "a vector": lambda: fed(floats, numbers).map(lambda a, b: ((a, tf.range(7)), b)),
    "flipped beside": lambda: fed(images).map(lambda a: tf.concat([a, tf.image.flip_left_right(a)], 0)),
    "repeated": lambda: fed(floats, numbers).map(lambda a, b: (tf.repeat(a, 2, 0), tf.repeat(b, 2, 0))),
    "variables": lambda: fed(floats).map(lambda a: a * scale),
    "logarithms": lambda: fed(floats).map(tf.math.log),
    "assertions": lambda: fed(floats).map(lambda a: tf.debugging.assert_all_finite(a, "not finite")),
    "conditions": lambda: fed(floats).map(lambda a: tf.cond(tf.shape(a)[0] > 99, lambda: a, lambda: a * 2)),
    "ragged": lambda: fed(ragged, numbers).map(lambda a, b: (a + 1, b)),
    "means of ragged rows": lambda: fed(ragged).map(lambda a: tf.reduce_mean(tf.cast(a, tf.float32), 1)),
    "one length": lambda: fed(ragged).map(lambda a: a.to_tensor(shape=[None, 9])),
    "zipped": lambda: tf.data.Dataset.zip(fed(floats), fed(targets)).map(lambda a, b: (a * 2, b)),
    "enumerated": lambda: fed(floats).map(lambda a: a * 2).enumerate().map(lambda i, a: a),
    "Python": lambda: fed(floats).map(lambda a: tf.numpy_function(lambda b: b - b.mean(), [a], tf.float32)),
    "random": lambda: fed(floats).map(lambda a: a + tf.random.normal(tf.shape(a))),
    "the rows that there are": lambda: fed(floats, batch=32).map(lambda a: a[:32]),
    "a count of batches": lambda: fed(floats).map(counted),
    "a count of batches in a scan": lambda: fed(floats).scan(0.0, lambda n, a: (n + 1.0, a * n)),
    "flat_map": lambda: fed(floats).flat_map(lambda a: tf.data.Dataset.from_tensors(a * 2).repeat(2)),
    "no map": lambda: fed(floats).cache().prefetch(1),
}
"""

MIXING = """CASES = {
    "a mean": lambda: fed(floats, targets).map(lambda a, b: (a, b - tf.reduce_mean(b))),
    "in parallel": lambda: fed(targets).map(lambda a: a / tf.reduce_max(tf.abs(a)), num_parallel_calls=2).prefetch(1),
    "mixup": lambda: fed(floats, targets).map(lambda a, b: (0.7 * a + 0.3 * a[::-1], b)),
    "a mean of logarithms": lambda: fed(floats).map(lambda a: tf.math.log(a) - tf.reduce_mean(tf.math.log(a))),
    "the largest label": lambda: fed(numbers).map(lambda a: a - tf.reduce_max(a)),
    "above the mean": lambda: fed(targets).map(lambda a: tf.cast(a > tf.reduce_mean(a), tf.int32)),
    "the number of rows": lambda: fed(floats).map(lambda a: (a, tf.shape(a)[0])),
    "weights by rows": lambda: fed(targets).map(lambda a: (a, tf.ones_like(a) / tf.cast(tf.shape(a)[0], a.dtype))),
    "columns of length one": lambda: fed({"a": floats}).map(lambda d: {"a": tf.nn.l2_normalize(d["a"], 0)}),
    "all pairs": lambda: fed(floats).map(lambda a: a @ tf.transpose(a)),
    "sorted": lambda: fed(targets).map(tf.sort),
    "the first rows": lambda: fed(floats, batch=32).map(lambda a: a[:8]),
    "most rows": lambda: fed(floats, batch=32).map(lambda a: a[:20]),
    "all but the first rows": lambda: fed(floats, batch=32).map(lambda a: a[9:]),
    "the first row's sign": lambda: fed(targets).map(lambda a: tf.cond(a[0] > 0, lambda: a, lambda: -a)),
    "means in flat_map": lambda: fed(floats).flat_map(
        lambda a: tf.data.Dataset.from_tensors(a - tf.reduce_mean(a, 0))),
    "slices in interleave": lambda: fed(floats, batch=32).interleave(
        lambda a: tf.data.Dataset.from_tensor_slices(a).batch(8)),
    "the second map": lambda: fed(floats).map(lambda a: a * 2).map(lambda a: a - tf.reduce_mean(a, 0)).repeat(),
    "one of two joined": lambda: fed(floats).concatenate(fed(floats).map(lambda a: a - tf.reduce_mean(a, 0))),
    "one of two zipped": lambda: tf.data.Dataset.zip(fed(floats), fed(targets).map(lambda a: a - tf.reduce_mean(a))),
    "ragged": lambda: fed(ragged).map(lambda a: a - tf.reduce_max(a.flat_values) * a.nrows(tf.int32)),
}
"""

STATES = """CASES = {
    "a running mean": lambda: fed(floats).map(averaged),
    "a count of rows": lambda: fed(floats).map(numbered),
    "moving averages": lambda: fed(floats).map(lambda a: normed(a, training=True)),
    "in a condition": lambda: fed(floats).map(lambda a: tf.cond(a[0, 0] > 9.0, lambda: averaged(a), lambda: a)),
    "the last row": lambda: fed(floats).scan(np.zeros(3, "float32"), lambda s, a: (a[-1], a - s)),
    "a mean in a scan": lambda: fed(floats).scan(tf.zeros(3), lambda s, a: (s / 2 + tf.reduce_mean(a, 0), a - s)),
}
"""

PADDING = """CASES = {
    "to_tensor": lambda: fed(ragged).map(lambda a: a.to_tensor(-1)),
    "cut off": lambda: fed(ragged, targets).map(lambda a, b: (a[:, :4].to_tensor(), b)),
    "words": lambda: fed(texts).map(lambda a: tf.strings.split(a).to_tensor()),
    "sparse": lambda: fed(ragged).map(lambda a: a.to_sparse()),
}
"""


@pytest.mark.soak
def test_functions_of_each_row_by_itself_are_told_from_those_that_mix_or_pad(groups: Any) -> None:
    for cases, verdict in ((ROW_BY_ROW, 0), (PADDING, 1)):
        verdicts = groups.plain(cases + VERDICTS, "verdicts").values["verdicts"]
        assert verdicts == dict.fromkeys(verdicts, verdict)
    verdicts = groups.plain(MIXING + VERDICTS, "verdicts").values["verdicts"]
    assert [name for name, verdict in verdicts.items() if "more than one row of a batch" not in str(verdict)] == []
    verdicts = groups.plain(STATES + VERDICTS, "verdicts").values["verdicts"]
    assert [name for name, verdict in verdicts.items() if "keeps a state" not in str(verdict)] == []


CENTRED = (
    DATA
    + FED
    + """
centred = train.map(lambda a, b: (a - tf.reduce_mean(a, 0), b))
model = mlp()
model.compile("sgd", from_logits)
"""
)


def test_a_filter_is_refused_where_its_number_of_batches_is_said(groups: Any) -> None:
    cell = "chosen = train.filter(lambda a, b: b[0] > 0).apply(tf.data.experimental.assert_cardinality(2))\n"
    cell += "model = mlp()\nmodel.compile('sgd', from_logits)\nmodel.fit(chosen)"
    for outcome in groups[2].run(f"SIZE = 2\n{DATA}{FED}{cell}"):
        assert "filter() on a fed DataFrame" in outcome.error


@pytest.mark.parametrize("call", ["fit(centred)", "evaluate(centred)", "predict(centred)"])
def test_a_function_that_mixes_rows_is_refused(groups: Any, call: str) -> None:
    for outcome in groups[2].run(f"SIZE = 2\n{CENTRED}model.{call}"):
        assert outcome.kind == "TrainingError", outcome.error
        assert "map() on a fed DataFrame" in outcome.error
        assert "df.agg" in outcome.error


def test_per_worker_batches_train_what_mixes_rows_and_a_share_of_the_cell_s_own_is_refused(groups: Any) -> None:
    cell = f"SIZE = 2\n{CENTRED}model.fit(centred, verbose=0)"
    succeeded(groups[2].run(cell, options={"per_worker_batches": True}))
    shard = """
import tfos_magic as tfos
mine = tfos.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(26))
model.fit(mine.map(lambda a, b: (a - tf.reduce_mean(a, 0), b)), verbose=0)
"""
    for outcome in groups[2].run(f"SIZE = 2\n{CENTRED}{shard}"):
        assert outcome.kind == "TrainingError", outcome.error
        assert "Map before tfos.shard()" in outcome.error


RAGGED = (
    DATA
    + FED
    + """
keras.config.set_dtype_policy("float64")
draw = np.random.default_rng(5)
tokens = tf.ragged.constant([draw.integers(1, 9, 1 + i * 7 % 11).tolist() for i in range(64)])
train = fed(tf.data.Dataset.from_tensor_slices((tokens, draw.normal(size=64))).batch(16))
padded = train.map(lambda a, b: (a.to_tensor(), b))


def made(mask):
    layers = [keras.layers.Embedding(10, 3, mask_zero=mask), keras.layers.Dropout(RATE)]
    model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


"""
)


@pytest.mark.soak
def test_ragged_rows_that_become_dense_train_as_in_one_process_where_the_model_masks_padding(groups: Any) -> None:
    cell = RAGGED.replace("RATE", "0.0")
    cell += """
model = made(True)
model.fit(padded, epochs=3, validation_data=padded, verbose=0)
model.fit(padded, verbose=0)
weights, loss = model.get_weights(), model.evaluate(padded, verbose=0)
"""
    expected = groups.plain("SIZE = 0\n" + cell, "weights", "loss").values
    outcomes, notices = told(groups[2], "SIZE = 2\n" + cell, "weights", "loss")
    assert_same_weights(outcomes, expected["weights"], 1e-12)
    for outcome in outcomes:
        assert abs(outcome.values["loss"] - expected["loss"]) < 1e-12
    assert notices == []


@pytest.mark.soak
def test_dropout_does_not_make_padding_matter(groups: Any) -> None:
    cell = RAGGED.replace("RATE", "0.5") + "made(True).fit(padded, verbose=0)"
    succeeded(groups[2].run("SIZE = 2\n" + cell))


REFUSED = {
    "fit": "made(False).fit(padded, verbose=0)",
    "evaluate": "made(False).evaluate(padded, verbose=0)",
    "validation": "model = made(False)\n"
    "even = train.map(lambda a, b: (a.to_tensor(shape=[None, 12]), b))\n"
    "model.fit(even, validation_data=padded, verbose=0)",
    "the second fit": "model = made(False)\n"
    "even = train.map(lambda a, b: (a.to_tensor(shape=[None, 12]), b))\n"
    "model.fit(even, verbose=0)\n"
    "model.fit(padded, verbose=0)",
}


@pytest.mark.parametrize("case", every(4, REFUSED))
def test_padding_that_changes_what_a_model_computes_is_refused(groups: Any, case: str) -> None:
    for outcome in groups[2].run("SIZE = 2\n" + RAGGED.replace("RATE", "0.0") + REFUSED[case]):
        assert outcome.kind == "TrainingError", outcome.error
        assert "Padding changes" in outcome.error
        assert "--pad" in outcome.error


@pytest.mark.parametrize("mask", [True, False])
def test_predictions_that_padding_may_change_are_told(groups: Any, mask: bool) -> None:
    cell = RAGGED.replace("RATE", "0.0")
    cell += f"""
from tfos_magic.training.inputs.marks import mark_sharded

if SIZE:
    mark_sharded(train, by_rank=True)
model = made({mask})
model.build((None, None))
predicted = model.predict(padded, verbose=0)
"""
    expected = groups.plain("SIZE = 0\n" + cell, "predicted").values["predicted"]
    outcomes, notices = told(groups[2], "SIZE = 2\n" + cell, "predicted")
    assert any("does not mask" in notice for notice in notices) == (not mask)
    for outcome in outcomes:
        assert np.allclose(outcome.values["predicted"], expected, atol=1e-12) == mask


def test_a_loop_of_its_own_over_a_map_that_mixes_rows_is_refused_when_it_trains(groups: Any) -> None:
    loop = """
weight = tf.Variable(tf.zeros([12, 3]))
optimizer = keras.optimizers.SGD(0.1)
for a, b in train.map(MAP):
    with tf.GradientTape() as tape:
        loss = from_logits(b, a @ weight)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
"""
    whole = loop.replace("MAP", "lambda a, b: (a - tf.reduce_mean(a, 0), b)")
    for outcome in groups[2].run("SIZE = 2\n" + DATA + FED + whole):
        assert outcome.kind == "TrainingError"
        assert "looks at more than one row" in outcome.error
    succeeded(groups[2].run("SIZE = 2\n" + DATA + FED + loop.replace("MAP", "lambda a, b: (a - 0.5, b)")))
