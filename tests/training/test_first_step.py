"""Before the first step of a model it is found out whether its step is a mean or a sum over rows, or mixes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded, told
from tests.training.harness import DATA

BEGIN = (
    DATA
    + """
from keras import layers, ops

y = x.sum(1, keepdims=True)


def between(*middle):
    return keras.Sequential([keras.Input((12,)), layers.Dense(8), *middle, layers.Dense(1)])


class Adds(layers.Layer):
    def __init__(self, of):
        super().__init__(name="adds")
        self.of = of

    def call(self, inputs):
        self.add_loss(self.of(inputs))
        return inputs


class Does(layers.Layer):
    def __init__(self, what, **weights):
        super().__init__()
        self.what, self.initial = what, weights

    def build(self, shape):
        for name, (size, trainable) in self.initial.items():
            setattr(self, name, self.add_weight(shape=size, initializer="zeros", trainable=trainable, name=name))

    def call(self, inputs, training=False):
        return self.what(self, inputs, training)


class Stepping(keras.Model):
    def __init__(self, reduce, change=lambda gradients: gradients, before=lambda model, loss: None):
        super().__init__()
        self.by_hand = False
        self.before, self.steps = before, self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)
        self.dense, self.reduce, self.change = layers.Dense(1), reduce, change
        self.mean = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = self.reduce(tf.square(self.dense(inputs) - targets))
        self.before(self, loss)
        gradients = self.change(tape.gradient(loss, self.trainable_weights))
        self.steps.assign(self.steps + 1)
        if self.by_hand:
            for gradient, weight in zip(gradients, self.trainable_weights):
                weight.assign_sub(0.003 * gradient)
        else:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


def count(layer, inputs, training):
    if training:
        layer.seen.assign(layer.seen + ops.cast(ops.shape(inputs)[0], "float32"))
        layer.mean.assign(0.9 * layer.mean + 0.1 * ops.mean(inputs, 0))
    return inputs


def gate(layer, inputs, training):
    return inputs + layer.gate * ops.softmax(inputs, axis=0)
"""
)
END = """
model.compile(keras.optimizers.SGD(0.003), loss)
history = model.fit(x, y, batch_size=33, epochs=2, verbose=0).history
weights = [variable.numpy() for variable in model.weights]
"""

EQUAL = {
    "vector": "model, loss = between(Adds(lambda h: ops.sum(h * h, axis=1) * 0.01)), 'mse'",
    "sum": "model, loss = between(Adds(lambda h: ops.sum(h * h) * 0.01)), 'mse'",
    "mean": "model, loss = between(Adds(lambda h: ops.mean(h * h))), 'mse'",
    "penalty": "kept = layers.Dense(8)\nkept.build((None, 8))\n"
    "model, loss = between(kept, Adds(lambda h: 0.1 * ops.sum(ops.square(kept.kernel)))), 'mse'",
    "loss-sum": "model, loss = between(), lambda a, b: ops.sum(ops.square(a - b)) * 0.01",
    "loss-mean": "model, loss = between(), lambda a, b: ops.mean(ops.square(a - b))",
    "loss-of-the-batch": "model, loss = between(), lambda a, b: ops.mean(ops.softmax(b, axis=0) * a)",
    "step-mean": "model, loss = Stepping(tf.reduce_mean), None",
    "step-sum": "model, loss = Stepping(lambda v: 0.01 * tf.reduce_sum(v)), None",
    "step-clips": "model, loss = Stepping(tf.reduce_mean, lambda g: tf.clip_by_global_norm(g, 0.5)[0]), None",
    "step-cuts": "cut = lambda g: tf.where(tf.abs(g) > 0.05, g, 0.0)\n"
    "model, loss = Stepping(tf.reduce_mean, lambda gs: list(map(cut, gs))), None",
    "step-limits": "limit = lambda g: tf.where(tf.norm(g) > 2.0, g * 0.1, g)\n"
    "model, loss = Stepping(tf.reduce_mean, lambda gs: list(map(limit, gs))), None",
    "step-by-hand": "model, loss = Stepping(tf.reduce_mean), None\nmodel.by_hand = True",
    "step-divides": "divide = lambda gs: [g / tf.cast(tf.shape(kept[0])[0], g.dtype) for g in gs]\nkept = []\n"
    "model, loss = Stepping(lambda v: kept.insert(0, v) or tf.reduce_sum(v), divide), None",
    "gathers": "model, loss = between(Does(count, seen=((), False), mean=((8,), False))), 'mse'",
    "draws": "noisy = Does(lambda s, h, t: h + tf.random.normal(tf.shape(h)) * s.none, none=((), False))\n"
    "model, loss = between(noisy), 'mse'",
    "normalised": "model, loss = between(layers.BatchNormalization(), layers.ReLU()), 'mse'",
}
MIXES = {
    "added": (
        "model, loss = between(Adds(lambda h: ops.mean(ops.softmax(h, axis=0) ** 2))), 'mse'",
        "layer 'adds' adds",
    ),
    "statistics": ("model, loss = between(Does(lambda s, h, t: h - ops.mean(h, 0))), 'mse'", "gradient of "),
    "gate": ("model, loss = between(Does(gate, gate=((), True))), 'mse'", "gradient of "),
    "tensordot": ("model, loss = between(Does(lambda s, h, t: h * ops.tensordot(h, h, 2))), 'mse'", "gradient of "),
    "clips-parts": (
        "divide = lambda g: tf.clip_by_value(g / tf.cast(tf.shape(inputs_of[0])[0], g.dtype), -0.05, 0.05)\n"
        "inputs_of, loss = [], None\n"
        "model = Stepping(lambda v: inputs_of.insert(0, v) or tf.reduce_sum(v), lambda gs: list(map(divide, gs)))",
        "does to the gradient of ",
    ),
    "by-the-loss": (
        "losses, loss = [], None\n"
        "model = Stepping(lambda v: losses.insert(0, tf.reduce_mean(v)) or losses[0],\n"
        "                 lambda gs: [g * tf.stop_gradient(losses[0]) for g in gs])",
        "does to the gradient of ",
    ),
    "rate-by-the-loss": (
        "rate = lambda model, loss: model.optimizer.learning_rate.assign(tf.where(loss > 0.7, 0.1, 0.01))\n"
        "model, loss = Stepping(tf.reduce_mean, before=rate), None",
        "learning_rate",
    ),
    "later": (
        "late = lambda v: tf.cond(model.steps > 4, lambda: tf.sqrt(tf.reduce_mean(v)), lambda: tf.reduce_mean(v))\n"
        "model, loss = Stepping(late), None",
        "gradient of ",
    ),
    "sum-and-penalty": (
        "model = Stepping(lambda v: tf.reduce_sum(v) + tf.reduce_sum(model.dense.kernel ** 2))\nloss = None",
        "gradient of ",
    ),
    "drawn-beside": (
        "crossentropy = keras.losses.BinaryCrossentropy(from_logits=True)\n"
        "drawn = lambda: model.dense(tf.random.normal((16, 12)))\n"  # as many as there are rows in a trial
        "both = lambda v: tf.reduce_mean(tf.concat([v, drawn()], 0)) + crossentropy(tf.ones((16, 1)), drawn())\n"
        "model, loss = Stepping(both), None",
        "gradient of ",
    ),
}


@pytest.mark.parametrize("case", every(50, EQUAL))
def test_means_and_sums_over_rows_give_the_weights_of_one_process(groups: Any, case: str) -> None:
    cell = BEGIN + EQUAL[case] + END
    expected = groups.plain(cell, "weights", "history").values
    outcomes = succeeded(groups[2].run(cell, "weights", "history"))
    assert_same_weights(outcomes, expected["weights"], 1e-5)
    np.testing.assert_allclose(outcomes[0].values["history"]["loss"], expected["history"]["loss"], rtol=1e-4)


@pytest.mark.parametrize("case", every(9, MIXES))
def test_what_mixes_rows_is_refused_by_name_and_with_the_remedy(groups: Any, case: str) -> None:
    body, what = MIXES[case]
    for outcome in groups[2].run(BEGIN + body + END):
        assert outcome.kind == "TrainingError", outcome.error
        assert what in outcome.error
        assert "mixes the rows of a batch" in outcome.error
        assert "-n 1" in outcome.error
        assert "--per-worker-batches" in outcome.error


WITHOUT_LABELS = "have = np.ones((len(x), 1), 'float32')\nhave[:33] = 0\ny = np.hstack([y, have])\n"
NOTHING_YET = {
    "labels": WITHOUT_LABELS
    + "model, loss = between(), lambda t, p: 0.01 * ops.sum(t[:, 1:] * ops.square(t[:, :1] - p))",
    "labels, by hand": WITHOUT_LABELS
    + "model, loss = Stepping(lambda v: 0.01 * tf.reduce_sum(v)), None\nmodel.dense = layers.Dense(2, use_bias=False)\n"
    "x[:33] = y[:33] = 0",
    "features": "x[:33] = 0\nmodel, loss = Stepping(lambda v: 0.01 * tf.reduce_sum(v)), None",
    "ratio": WITHOUT_LABELS
    + "over = lambda t, p: tf.math.divide_no_nan(ops.sum(t[:, 1:] * ops.square(t[:, :1] - p)), ops.sum(t[:, 1:]))\n"
    "model, loss = between(), over",
    "statistics": "x[:33] = 0\ntotal = lambda s, h, t: s.total.assign_add(ops.sum(h, 0)) is None or h\n"
    "model = keras.Sequential([Does(total, total=((12,), False)), layers.Dense(1)])\nloss = 'mse'",
}


@pytest.mark.soak
@pytest.mark.parametrize("case", every(12, NOTHING_YET))
def test_what_the_first_batch_does_not_show_is_what_it_is_in_one_process(groups: Any, case: str) -> None:
    cell = BEGIN + NOTHING_YET[case] + END.replace("verbose", "shuffle=False, verbose")
    expected = groups.plain(cell, "weights", "history").values
    outcomes = succeeded(groups[2].run(cell, "weights", "history"))
    assert_same_weights(outcomes, expected["weights"], 1e-5)
    np.testing.assert_allclose(outcomes[0].values["history"]["loss"], expected["history"]["loss"], rtol=1e-4)


LOGS = """
class Told(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.kept, self.steps = layers.Dense(1), [], 0
        self.dense.build((None, 12))

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            errors = tf.square(self.dense(inputs) - targets)
            loss = 0.001 * tf.reduce_sum(errors)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self.kept = [*self.kept, loss]
        self.steps += 1
        rows = tf.shape(inputs)[0]
        return {"loss": loss, "mean": tf.reduce_mean(errors), "rows": rows, "rate": 0.5, "worst": tf.reduce_max(errors)}


model, loss, seen = Told(), None, []
model.run_eagerly = EAGER
model.compile(keras.optimizers.SGD(0.003), run_eagerly=EAGER)
callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]))]
history = model.fit(x, y, batch_size=33, epochs=2, verbose=0, callbacks=callbacks).history
steps = model.steps, len(model.kept)
"""


@pytest.mark.soak
@pytest.mark.parametrize("eager", ["", "model", "functions"])
def test_sums_among_the_logs_of_a_step_are_those_of_all_rows_and_others_are_named(groups: Any, eager: str) -> None:
    functions = f"tf.config.run_functions_eagerly({eager == 'functions'})\n"
    cell = BEGIN + functions + LOGS.replace("EAGER", str(eager == "model")) + "tf.config.run_functions_eagerly(False)"
    expected = groups.plain(cell, "history", "seen", "steps").values
    outcomes, notices = told(groups[2], cell, "history", "seen", "steps")
    for outcome in outcomes:
        for name in ("loss", "mean", "rows", "rate"):
            np.testing.assert_allclose(outcome.values["history"][name], expected["history"][name], rtol=1e-4)
        np.testing.assert_allclose(outcome.values["seen"], expected["seen"], rtol=1e-4)
        assert not eager or outcome.values["steps"] == expected["steps"]
    assert sum("'worst' is neither a mean nor a sum" in notice for notice in notices) == 1
    assert any("run eagerly" in notice for notice in notices) == bool(eager)


@pytest.mark.soak
def test_rows_mixed_with_the_batch_reversed_are_refused_whatever_their_number(groups: Any) -> None:
    mixing = "reversed_too = lambda s, h, t: 0.7 * h + 0.3 * h[::-1]\nmodel, loss = between(Does(reversed_too)), 'mse'"
    for rows in (12, 24, 26):
        for outcome in groups[2].run(BEGIN + mixing + END.replace("batch_size=33", f"batch_size={rows}")):
            assert outcome.kind == "TrainingError", outcome.error
            assert "mixes the rows of a batch" in outcome.error


def test_per_worker_batches_train_what_mixes_rows_and_say_so(groups: Any) -> None:
    notices: list[str] = []
    outcomes = groups[2].run(
        BEGIN + MIXES["added"][0] + END,
        "weights",
        options={"per_worker_batches": True},
        on_message=lambda rank, message: notices.append(getattr(message, "text", "")),
    )
    assert_same_weights(succeeded(outcomes), outcomes[0].values["weights"], 0.0)
    assert any("its own batch" in text for text in notices)


TRACES = """
from keras.src.random.seed_generator import global_seed_generator

class Noisy(layers.Layer):
    def call(self, inputs, training=False):
        return inputs + 0.0 * keras.random.normal(ops.shape(inputs)) + 0.0 * tf.random.normal(tf.shape(inputs))

model = between(layers.BatchNormalization(), Noisy(), layers.Dropout(0.0))
loss = "mse"
"""
AFTER = """
import random

drawn = [random.random(), np.random.rand(), float(tf.random.uniform([])), str(global_seed_generator().state.numpy())]
weights = [variable.numpy() for variable in model.weights]
"""


def test_the_check_leaves_no_trace_in_seeds_statistics_or_data(groups: Any) -> None:
    cell = BEGIN + TRACES + END + AFTER
    expected = groups.plain(cell, "drawn", "weights").values
    for outcome in succeeded(groups[2].run(cell, "drawn", "weights")):
        assert outcome.values["drawn"] == expected["drawn"]
        for mine, plain in zip(outcome.values["weights"], expected["weights"], strict=True):
            assert np.abs(mine - plain).max() <= 1e-5


WRITES = """
import contextlib, glob, io, tempfile

place = tempfile.mkdtemp()
writer = tf.summary.create_file_writer(place + "/events")


class Tells(layers.Layer):
    def call(self, inputs):
        print("called")
        tf.print("rows", tf.shape(inputs)[0], output_stream="file://" + place + "/printed")
        with writer.as_default(step=0):
            tf.summary.scalar("mean", tf.reduce_mean(inputs))
        return inputs


model = keras.Sequential([keras.Input((12,)), Tells(), layers.Dense(1)])
model.compile("sgd", "mse")
with contextlib.redirect_stdout(io.StringIO()) as said:
    model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
writer.flush()
lines = len(open(place + "/printed").readlines())
events = sum(len(list(tf.compat.v1.train.summary_iterator(f))) for f in glob.glob(place + "/events/*"))
calls = said.getvalue().count("called")
"""


@pytest.mark.soak
def test_a_step_on_trial_prints_and_writes_nothing(groups: Any) -> None:
    expected = groups.plain(BEGIN + WRITES, "lines", "events").values
    assert expected["lines"] == 10
    for outcome in succeeded(groups[2].run(BEGIN + WRITES, "lines", "events", "calls")):
        assert {name: outcome.values[name] for name in expected} == expected
        assert outcome.values["calls"] <= 2, "a graph is traced once or twice"


def noticed(groups: Any, cell: str) -> list[str]:
    notices: list[str] = []
    succeeded(groups[2].run(cell, on_message=lambda rank, message: notices.append(getattr(message, "text", ""))))
    return [text for text in notices if text]


@pytest.mark.soak
def test_random_numbers_are_noticed_where_they_are_drawn_and_nowhere_else(groups: Any) -> None:
    sequence = (
        BEGIN + "model, loss = keras.Sequential([layers.Reshape((3, 4)), layers.LSTM(4), layers.Dense(1)]), 'mse'"
    )
    assert noticed(groups, sequence + END) == []
    (notice,) = noticed(groups, BEGIN + "model, loss = between(layers.Dropout(0.5, name='drops')), 'mse'" + END)
    assert "drops" in notice
    assert "in expectation" in notice


@pytest.mark.soak
def test_what_a_step_prints_or_writes_by_tensorflow_is_told_to_be_of_one_workers_rows(groups: Any) -> None:
    prints, writes = noticed(groups, BEGIN + WRITES)
    assert "tf.print" in prints
    assert "tf.summary" in writes


STREAMS = """
seen = []

class Draws(layers.Layer):
    def call(self, inputs, training=False):
        rows = ops.shape(inputs)[0]
        noise = [tf.random.normal([rows]), keras.random.normal((rows,)), keras.random.normal((rows,), seed=own)]
        noise = [drawn[:2] for drawn in noise]
        tf.numpy_function(lambda *drawn: seen.append(np.concatenate(drawn)) or np.float32(0), noise, tf.float32)
        return inputs

own = keras.random.SeedGenerator(3)
outside = [tf.random.normal([2]).numpy(), np.random.default_rng().normal(), __import__("random").Random().random()]
model, loss = between(Draws()), "mse"
"""


def test_a_step_draws_apart_on_every_worker_and_the_same_again_with_the_seed(groups: Any) -> None:
    cell = BEGIN + STREAMS + END + "\nseen = np.array(seen[-8:])"
    first, second = succeeded(groups[2].run(cell, "seen", "outside"))
    again, _ = succeeded(groups[2].run(cell, "seen", "outside"))
    assert first.values["seen"].shape == second.values["seen"].shape
    assert not np.isclose(first.values["seen"], second.values["seen"]).any()
    assert np.array_equal(first.values["seen"], again.values["seen"])
    for mine, other in zip(first.values["outside"], second.values["outside"], strict=True):
        assert np.array_equal(mine, other)


DIFFERENT = {
    "arrays": "x = np.random.default_rng(rank).normal(size=x.shape)\ndata = dict(x=x, y=y, batch_size=33)",
    "order": "rows = np.random.default_rng(rank).permutation(len(x))\n"
    "data = dict(x=tf.data.Dataset.from_tensor_slices((x[rows], y[rows])).batch(33))",
    "shuffle": "tf.random.set_seed(rank)\n"
    "data = dict(x=tf.data.Dataset.from_tensor_slices((x, y)).shuffle(200).batch(33))",
}


@pytest.mark.parametrize("case", every(2, DIFFERENT))
def test_data_that_differ_between_workers_are_not_trained_on(groups: Any, case: str) -> None:
    cell = BEGIN + f"model = between()\nmodel.compile('sgd', 'mse')\n{DIFFERENT[case]}\nmodel.fit(**data, verbose=0)"
    for outcome in groups[2].run(cell):
        assert outcome.kind == "TrainingError", outcome.error
        assert "different values or in a different order" in outcome.error


@pytest.mark.soak
def test_generators_without_a_seed_make_the_same_data_on_every_worker(groups: Any) -> None:
    cell = BEGIN + "model, loss = between(), 'mse'\nx = np.random.default_rng().normal(size=x.shape).astype('float32')"
    first, second = succeeded(groups[2].run(cell + END, "x", "weights"))
    assert np.array_equal(first.values["x"], second.values["x"])
    assert_same_weights([first, second], first.values["weights"], 0.0)


BUILT_BEFORE = """
flip = keras.Sequential([Draws()])

class Built(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.Sequential([layers.Dense(8), layers.Dropout(0.5), layers.Dense(1)])

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs{argument}):
        return self.scale * self.head(flip(inputs))

model = Built()
model.build((None, 12))
model.compile("sgd", "mse")
model.fit(x, y, batch_size=32, epochs=1, verbose=0)
draws = [int(v.numpy()[1]) for v in [*model.variables, *flip.variables] if "seed" in v.path]
"""
DRAWS = """
class Draws(layers.Layer):  # trains unless told otherwise, as layers that augment do
    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator()

    def call(self, inputs, training=True):
        return inputs + 0.0 * keras.random.normal(ops.shape(inputs), seed=self.generator) if training else inputs
"""


@pytest.mark.soak
@pytest.mark.parametrize("argument", ["", ", training=None"])
def test_a_model_built_by_hand_drops_and_augments_as_in_one_process(groups: Any, argument: str) -> None:
    cell = BEGIN + DRAWS + BUILT_BEFORE.replace("{argument}", argument)
    expected = groups.plain(cell, "draws").values["draws"]
    assert min(expected) > 0
    outcomes, notices = told(groups[2], cell, "draws")
    assert all(outcome.values["draws"] == expected for outcome in outcomes)
    assert any("Random numbers in a step" in text for text in notices)


PART_IS_TRAINED = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([layers.Dense(4), layers.Dropout(0.5), layers.Dense(1)])

    def call(self, inputs, training=None):
        return self.net(inputs)

class Distiller(keras.Model):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = Net(), Net()

    def call(self, inputs, training=None):
        return self.student(inputs) + self.teacher(inputs)

    def train_step(self, data):
        inputs, target = data
        print("traced")
        with tf.GradientTape() as tape:
            outputs = self.student(inputs)  # without training=True: nothing is dropped
            loss = tf.reduce_mean((outputs - target) ** 2) + tf.reduce_mean((outputs - self.teacher(inputs)) ** 2)
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"loss": loss}

model = Distiller()
model.compile("adam")
history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history
weights = model.get_weights()
paths = [v.path for v in [*model.variables, *model.optimizer.variables]]
"""


@pytest.mark.soak
def test_a_step_that_trains_a_part_of_a_model_gets_the_variables_of_one_process(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + PART_IS_TRAINED, 2, "paths")
    assert all(outcome.values["paths"] == plain.values["paths"] for outcome in ranks)


TRIPLETS = (
    BEGIN
    + """
embedding = keras.Sequential([keras.Input((12,)), layers.Dense(16, "relu"), layers.Dense(8, name="last")])
inputs = [keras.Input((12,)) for _ in range(3)]
distances = keras.Model(inputs, layers.Concatenate()([embedding(each) for each in inputs]))


def triplet(_, joined):
    anchor, positive, negative = tf.split(joined, 3, axis=-1)
    near, far = tf.reduce_sum((anchor - positive) ** 2, -1), tf.reduce_sum((anchor - negative) ** 2, -1)
    return tf.maximum(near - far + 1.0, 0.0)


distances.compile(keras.optimizers.SGD(0.01), triplet)
distances.fit([x, x[::-1], x + 1.0], np.zeros(len(x)), batch_size=16, epochs=2, verbose=0)
weights = embedding.get_weights()
"""
)


@pytest.mark.soak
def test_gradients_that_cancel_but_for_rounding_are_no_mixture(groups: Any) -> None:
    plain = groups.plain(TRIPLETS, "weights").values["weights"]
    assert_same_weights(succeeded(groups[2].run(TRIPLETS, "weights")), plain, 1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("norm", every(2, ["LayerNormalization()", "LayerNormalization(center=False)"]))
def test_rows_of_a_table_whose_gradients_sum_to_nothing_are_no_mixture(same_as_plain, norm: str) -> None:
    """What takes the mean of its input out gives gradients that sum to zero over it, but for rounding."""
    same_as_plain(
        DATA
        + f"""
ids = np.random.default_rng(0).integers(0, 20, (48, 12))
scores = np.random.default_rng(1).normal(size=(48, 1)).astype("float32")
entered = keras.Input((12,), dtype="int32")
normed = keras.layers.{norm}(keras.layers.Embedding(20, 8)(entered))
model = keras.Model(entered, keras.layers.Dense(1)(keras.layers.Flatten()(normed)))
model.compile("sgd", "mse")
history = model.fit(ids, scores, batch_size=16, epochs=2, verbose=0).history
weights = model.get_weights()
""",
        2,
    )


BY_METRICS = """
class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.mean = layers.Dense(1), keras.metrics.Mean("mean")

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) * (1 + self.mean.result())
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.mean.update_state(ops.abs(y))
        return {"mean": self.mean.result()}


model, loss = Scaled(), "mse"
"""


def test_a_step_that_goes_by_its_metrics_is_refused(groups: Any) -> None:
    for outcome in groups[2].run(BEGIN + BY_METRICS + END):
        assert outcome.kind == "TrainingError", outcome.error
        assert "depends on its metrics, as by self.metric.result()" in outcome.error


DRAWS_IN_STEPS = """
import random


class Draws(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        drawn.append(random.random() + float(np.random.uniform()))
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) * drawn[-1]
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


drawn, model = [], Draws()
model.compile("sgd", "mse", run_eagerly=True)
history = model.fit(x, y, batch_size=33, epochs=1, verbose=0, shuffle=False).history
weights = [variable.numpy() for variable in model.weights]
"""


@pytest.mark.soak
def test_what_an_eager_step_draws_of_python_and_numpy_is_what_it_draws_in_one_process(same_as_plain: Any) -> None:
    plain, *ranks = same_as_plain(BEGIN + DRAWS_IN_STEPS, 2, "drawn")
    for outcome in ranks:
        assert outcome.values["drawn"] == plain.values["drawn"]
