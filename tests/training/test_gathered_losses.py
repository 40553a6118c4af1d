"""Losses that are no mean or sum over rows are those of the global batch: its labels and outputs come together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.soak import in_turn
from tests.training.conftest import assert_same_weights, succeeded, told
from tests.training.harness import DATA, FED

BEGIN = """
from keras import layers, ops

keras.config.set_floatx("float64")
x = np.random.default_rng(0).normal(size=(101, 12))
total = x.sum(1, keepdims=True)
rare = (total > np.sort(total, 0)[-5]).astype("int64")
missing, flagged = total.copy(), total.copy()
missing[[40, 60, 90]], flagged[[40, 60, 90]] = np.nan, -999


def focal(truth, made):
    truth, share = ops.cast(truth, made.dtype), ops.sigmoid(made)
    share = truth * share + (1 - truth) * (1 - share)
    return -ops.mean((1 - share) ** 2 * ops.log(share + 1e-7))


def known(truth, made):
    is_known = tf.math.is_finite(truth)
    return tf.reduce_mean(tf.square(tf.boolean_mask(truth, is_known) - tf.boolean_mask(made, is_known)))


def unflagged(truth, made):
    weight = ops.cast(ops.not_equal(truth, -999.0), made.dtype)
    return ops.sum(weight * (truth - made) ** 2) / ops.sum(weight)


def flooded(truth, made):
    return ops.abs(ops.mean((truth - made) ** 2) - 0.9) + 0.9


def hard(truth, made):
    errors = (truth - made) ** 2
    chosen = ops.cast(errors > 1, errors.dtype)
    return ops.sum(errors * chosen) / ops.maximum(ops.sum(chosen), 1)


def contrast(truth, made):
    return -tf.linalg.diag_part(tf.nn.log_softmax(tf.matmul(made, made, transpose_b=True), -1))


def balanced(truth, made):
    of_rows = keras.losses.sparse_categorical_crossentropy(truth, made)
    shares = ops.mean(made, axis=0)
    return of_rows + 1e-5 * ops.sum(shares * ops.log(shares))


def of_shares(truth, made):
    of_rows = keras.losses.sparse_categorical_crossentropy(truth, made)
    weight = ops.cast(truth[:, 0] > 0, of_rows.dtype)
    return ops.sum(of_rows * weight) / ops.sum(weight)


def dense(**outputs):
    given = keras.Input((12,))
    hidden = layers.Dense(6, "tanh")(given)
    return keras.Model(given, {name: layers.Dense(size, name=name)(hidden) for name, size in outputs.items()})


def one(size=1):
    return keras.Sequential([keras.Input((12,)), layers.Dense(6, "tanh"), layers.Dense(size)])


def tokens():
    embedded = layers.Embedding(9, 4, mask_zero=True)
    return keras.Sequential([keras.Input((5,)), embedded, layers.LSTM(3, return_sequences=True), layers.Dense(9)])


class Flooded(keras.losses.Loss):
    def call(self, truth, made):
        return flooded(ops.cast(truth, made.dtype), made)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.net, self.by_class, self.both = one(), keras.losses.BinaryFocalCrossentropy(from_logits=True), Flooded()

    def call(self, rows):
        return self.net(rows)

    def train_step(self, data):
        rows, truth = data
        with tf.GradientTape() as tape:
            made = self.net(rows)
            loss = self.compute_loss(y=truth, y_pred=made) + self.by_class(truth, made) + 0.1 * self.both(truth, made)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


labels, kwargs, compiled, loss = total, {}, {}, None
"""
FIT = """
model.compile(keras.optimizers.Adam(0.05), loss, **compiled)
history = model.fit(x, labels, batch_size=8, epochs=3, verbose=0, shuffle=False, **kwargs).history
weights = model.get_weights()
"""
PROGRAMS = {
    "class weights": "model, loss, labels, kwargs = one(), focal, rare, {'class_weight': {0: 1.0, 1: 25.0}}",
    "missing labels": "model, loss, labels = one(), known, missing\n"
    "kwargs = {'validation_data': (x[:13], total[:13]), 'validation_batch_size': 5}",
    "flags": "model, loss, labels, compiled = one(), unflagged, flagged, {'steps_per_execution': 3}",
    "flooding": "model, loss, labels, compiled = one(), flooded, total / 3, {'jit_compile': False, 'metrics': ['mae']}",
    "hardest rows": "model, loss, compiled = one(), hard, {'run_eagerly': True}",
    "shares of a softmax": "model, loss, labels = one(3), of_shares, (total > 0).astype('int64') + (x[:, :1] > 0)\n"
    "model.add(layers.Softmax())",
    "a little of the batch": "model, loss, labels = one(3), balanced, (total > 0).astype('int64')\n"
    "model.add(layers.Softmax())",
    "a little, at first alike": "model, loss, labels = one(3), balanced, (total > 0).astype('int64')\n"
    "model.layers[-1].kernel.assign(np.zeros((6, 3)))\nmodel.add(layers.Softmax())",
    "in the batch": "model, loss, labels = one(3), contrast, rare",
    "circles": "model, loss, labels = one(3), keras.losses.Circle(), (total[:, 0] > 0).astype('int64')\n"
    "model.add(layers.UnitNormalization())\nkwargs = {'sample_weight': x[:, 1] ** 2}",
    "a weighted overlap": "model, loss, labels = one(3), keras.losses.Dice(), (x[:, :3] > 0).astype('float64')\n"
    "model.add(layers.Activation('sigmoid'))\nkwargs = {'sample_weight': x[:, 0] ** 2}",
    "weighted overlaps added": "model, labels = one(3), (x[:, :3] > 0).astype('float64')\n"
    "loss, kwargs = keras.losses.Tversky(0.3, 0.7, reduction='sum'), {'sample_weight': x[:, 0] ** 2}\n"
    "model.add(layers.Activation('sigmoid'))",
    "row weights": "model, loss, kwargs = one(), hard, {'sample_weight': x[:, 0] ** 2}",
    "several": "model, labels = dense(a=1, b=3, c=1), {'a': total, 'b': rare, 'c': flagged}\n"
    "loss, compiled = {'a': flooded, 'b': contrast, 'c': unflagged}, {'loss_weights': {'a': 0.5, 'b': 1.0, 'c': 2.0}}",
    "masks": "given = np.random.default_rng(1).integers(1, 9, (101, 5))\ngiven[30:, 3:] = 0\nx = labels = given\n"
    "def loss(truth, made):\n"
    "    of_rows = keras.losses.sparse_categorical_crossentropy(truth, made, from_logits=True)\n"
    "    weight = ops.cast(truth > 0, of_rows.dtype)\n"
    "    return ops.sum(of_rows * weight) / ops.sum(weight)\n"
    "model = tokens()",
    "a step of one's own": "model, loss, labels = Own(), focal, rare",
}


@pytest.mark.parametrize(("name", "size"), in_turn(PROGRAMS, [3, 2], 16))
def test_losses_of_a_whole_batch_train_to_the_weights_of_one_process(groups: Any, name: str, size: int) -> None:
    cell = DATA + BEGIN + PROGRAMS[name] + FIT
    expected = groups.plain(cell, "weights", "history").values
    outcomes = succeeded(groups[size].run(cell, "weights", "history"))
    assert_same_weights(outcomes, expected["weights"], 1e-9)
    for outcome in outcomes:
        for metric, values in expected["history"].items():
            np.testing.assert_allclose(outcome.values["history"][metric], values, rtol=1e-9, err_msg=metric)


CLIPS = """
class Clips(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = one(3)

    def call(self, rows):
        return self.net(rows)

    def train_step(self, data):
        rows, truth = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=truth, y_pred=self(rows))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.1)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}

model, labels = Clips(), (total > 0).astype("int64")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""


def test_a_step_that_clips_by_the_common_norm_says_nothing_of_its_loss(groups: Any) -> None:
    cell = DATA + BEGIN + CLIPS + FIT
    expected = groups.plain(cell, "weights").values
    outcomes, notices = told(groups[2], cell, "weights")
    assert_same_weights(outcomes, expected["weights"], 1e-9)
    assert notices == []


@pytest.mark.soak
@pytest.mark.parametrize("size", [3, 2])
def test_shares_of_fed_rows_with_none_for_a_worker_and_single_batches_too(groups: Any, size: int) -> None:
    fed = (
        "rows = fed(tf.data.Dataset.from_tensor_slices((x, flagged)).batch(25))  # the last batch has one row\n"
        "model = one()\nmodel.compile('adam', unflagged)\n"
        "history = model.fit(rows, validation_data=rows, epochs=3, verbose=0).history\n"
        "history['on batches'] = [model.train_on_batch(x[:7], flagged[:7]), model.test_on_batch(x[:1], total[:1])]\n"
        "weights = model.get_weights()\n"
    )
    cell = DATA + FED + BEGIN + fed
    expected = groups.plain(cell.replace("SIZE", "0"), "weights", "history").values
    outcomes = succeeded(groups[size].run(cell.replace("SIZE", str(size)), "weights", "history"))
    assert_same_weights(outcomes, expected["weights"], 1e-9)
    for metric, values in expected["history"].items():
        np.testing.assert_allclose(outcomes[-1].values["history"][metric], values, rtol=1e-9, err_msg=metric)


NUMBERS = """
def rmse(truth, made):
    return ops.sqrt(ops.mean((truth - made) ** 2))


def pearson(truth, made):
    truth, made = truth - ops.mean(truth), made - ops.mean(made)
    return ops.sum(truth * made) / ops.sqrt(ops.sum(truth**2) * ops.sum(made**2) + 1e-9)


def off(truth, made):
    return ops.abs(truth - made)[:, 0]


class ByError(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.02 * float(logs["a_rmse"])


hidden = layers.Dense(8, "relu")(entrance := keras.Input((12,)))
outputs = {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(2, "softmax", name="b")(hidden)}
model = keras.Model(entrance, outputs)
model.compile(
    "adam",
    {"a": "mse", "b": "sparse_categorical_crossentropy"},
    metrics={"a": [rmse, pearson, off, "mae"], "b": "accuracy"},
    run_eagerly=EAGER,
)
best = keras.callbacks.EarlyStopping("val_a_pearson", mode="max", patience=1, restore_best_weights=True)
truth = {"a": total + np.sin(9 * total), "b": rare[:, 0]}
history = model.fit(
    x, truth, batch_size=16, epochs=4, validation_split=0.3, callbacks=[ByError(), best], verbose=0
).history
weights = model.get_weights()
scores = model.evaluate(x, truth, batch_size=7, verbose=0)
"""


@pytest.mark.soak
@pytest.mark.parametrize(("eager", "size"), in_turn([False, True], [2, 3], 2))
def test_metrics_that_give_one_number_for_a_batch_are_of_all_rows(groups, size: int, eager: bool) -> None:
    cell = f"EAGER = {eager}\n" + DATA + BEGIN + NUMBERS
    plain = groups.plain(cell, "weights", "history", "scores").values
    notices: list[str] = []

    def hear(rank: int, message: Any) -> None:
        notices.extend([message.text] if type(message).__name__ == "Notice" else [])

    for outcome in succeeded(groups[size].run(cell, "weights", "history", "scores", on_message=hear)):
        assert_same_weights([outcome], plain["weights"], 1e-11)
        assert outcome.values["scores"] == pytest.approx(plain["scores"], abs=1e-11)
        assert {name: len(values) for name, values in outcome.values["history"].items()} == {
            name: len(values) for name, values in plain["history"].items()
        }
    assert not any("sums over rows" in notice for notice in notices)


EAGERLY = """
def many(truth, made):
    return int((np.abs(np.asarray(truth) - np.asarray(made)) > 1).sum())


def summed(truth, made):
    return ops.sum((truth - made) ** 2) / 7


model = keras.Sequential([keras.Input((12,)), layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.001), summed, metrics=[many], run_eagerly=True)
history = model.fit(x[:31], total[:31], batch_size=10, epochs=2, verbose=0).history
weights = [*model.get_weights(), np.array(history["many"]), np.array(history["loss"])]
"""


@pytest.mark.soak
def test_a_first_step_that_only_numpy_can_take_is_tried_as_well(groups) -> None:
    cell = DATA + BEGIN + EAGERLY
    plain = groups.plain(cell, "weights").values["weights"]
    assert_same_weights(succeeded(groups[2].run(cell, "weights")), plain, 1e-11)


FORMS = """
class Rmse(keras.losses.Loss):
    def call(self, truth, made):
        return ops.sqrt(ops.mean((truth - made) ** 2))


class Contrast(keras.losses.Loss):
    def __call__(self, truth, made, sample_weight=None):
        alike = ops.cast(ops.equal(truth, ops.transpose(truth)), made.dtype)
        scores = ops.matmul(made, ops.transpose(made))
        return ops.mean(ops.categorical_crossentropy(alike / ops.sum(alike, 1, keepdims=True), scores, True))


class Plain(keras.losses.Loss):
    def __call__(self, truth, made, sample_weight=None):
        return ops.mean((truth - made) ** 2)


class Two(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="two")
        self.error, self.rows = (self.add_weight(name=name, initializer="zeros") for name in ("error", "rows"))

    def update_state(self, truth, made, sample_weight=None):
        self.error.assign_add(ops.sum(ops.abs(truth - made)))
        self.rows.assign_add(ops.cast(ops.shape(truth)[0], self.rows.dtype))

    def result(self):
        return {"two": self.error / self.rows, "rows": self.rows}


def trained(loss, metrics, truth):
    keras.utils.set_random_seed(3)
    hidden = layers.Dense(4, "relu")(entrance := keras.Input((12,)))
    model = keras.Model(entrance, layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.05), loss, metrics=metrics)
    past = model.fit(x, truth, batch_size=16, epochs=2, validation_split=0.2, verbose=0).history
    return [np.array(values) for values in past.values()] + model.get_weights()


twice = Rmse()
weights = [
    *trained(Rmse(), [keras.losses.Huber()], total),
    *trained("mse", [Rmse(), Two()], total),
    *trained(twice, [twice], total),
    *trained(Contrast(), [], rare),
    *trained(Plain(), [Plain()], total),
]
"""


@pytest.mark.soak
def test_losses_among_metrics_and_losses_that_are_called_in_their_own_way_are_of_all_rows(groups) -> None:
    cell = DATA + BEGIN + FORMS
    plain = groups.plain(cell, "weights").values["weights"]
    assert_same_weights(succeeded(groups[3].run(cell, "weights")), plain, 1e-11)


ROUNDED = """
import tfos_magic
from keras import ops

keras.config.set_floatx("float64")


class Rounded(keras.losses.Loss):
    def call(self, truth, made):
        values, rows = ops.mean(ops.square(truth - made), axis=-1), ops.shape(made)[0]
        return values + (1e-9 * ops.cast(rows, made.dtype) if tfos_magic.rank() == 1 else 0)


model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)])
model.compile("adam", Rounded())
history = model.fit(x, x[:, :1], batch_size=16, epochs=1, verbose=0)
weights = model.get_weights()
"""


@pytest.mark.soak
def test_workers_gather_the_same_losses_where_rounding_lets_them_find_different_ones(groups) -> None:
    plain = groups.plain(DATA + ROUNDED, "weights").values["weights"]
    assert_same_weights(succeeded(groups[2].run(DATA + ROUNDED, "weights")), plain, 1e-9)


CTC = """
keras.config.set_floatx("float64")
sounds, words = np.random.default_rng(0).normal(size=(16, 8, 3)), np.random.default_rng(1).integers(1, 5, (16, 4))
model = keras.Sequential([keras.layers.Dense(5, "softmax")])
model.compile("adam", keras.losses.CTC())
history = model.fit(sounds, words, batch_size=4, epochs=1, verbose=0)
weights = model.get_weights()
"""


@pytest.mark.soak
def test_ctc_which_computes_in_float32_trains_as_in_one_process(groups) -> None:
    plain = groups.plain(DATA + CTC, "weights").values["weights"]
    for _ in range(3):
        assert_same_weights(succeeded(groups[2].run(DATA + CTC, "weights")), plain, 1e-7)
