"""Metrics of Keras, and what is saved by them, in loops of the cell's own over rows of which each rank has a share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded, told
from tests.training.harness import DATA, FED

GUIDE = """
valid = fed(tf.data.Dataset.from_tensor_slices((val_x, val_y)).batch(16))


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(16, "relu"), keras.layers.Dense(3)

    def call(self, a, training=False):
        return self.out(self.hidden(a))


model, optimizer = Net(), keras.optimizers.Adam(0.01)
mean, right, top = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Sum()
val_mean, val_right = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
positives = keras.metrics.TruePositives()
f1, areas = keras.metrics.F1Score(average="macro"), keras.metrics.AUC(multi_label=True)
seen_rows, steps, level = keras.metrics.Sum(), keras.metrics.Sum(), keras.metrics.Mean(name="level")
of_arrays = keras.metrics.TruePositives()


class Spread(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="spread")
        self.squares = self.add_weight(name="squares", initializer="zeros")

    def update_state(self, p):
        self.squares.assign_add(tf.reduce_sum(p ** 2))

    def result(self):
        return tf.sqrt(self.squares)


spread, seen = Spread(), []


def train_step(a, b):
    with tf.GradientTape() as tape:
        p = model(a, training=True)
        loss = from_logits(b, p)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))
    mean.update_state(loss)
    right.update_state(b, p)
    top.update_state(tf.reduce_sum(tf.cast(p[:, 0] > 0, tf.int32)))
    seen_rows.update_state(tf.shape(b)[0])
    steps.update_state(1.0)
    level.update_state(tf.reduce_mean(p))
    return right.result()


def val_step(a, b):
    p = model(a)
    loss = from_logits(b, p)
    val_mean(loss)
    flat = keras.losses.MeanSquaredError()(tf.cast(b, tf.float32), p[:, 0])
    val_right.update_state(b, p)
    spread.update_state(p)
    f1.update_state(tf.one_hot(b, 3), tf.nn.softmax(p))
    areas.update_state(tf.one_hot(b, 3), tf.nn.softmax(p))
    positives.update_state(b > 0, p[:, 1] > 0)
    return loss + 10 * flat


if GRAPH:
    train_step, val_step = tf.function(train_step), tf.function(val_step)
for epoch in range(2):
    for i, (a, b) in enumerate(train):
        seen.append(float(train_step(a, b)))
        if i == 2:
            break
    seen.append(float(mean.result()))
    for a, b in train:
        train_step(a, b)
        of_arrays.update_state(val_y > 0, model(val_x)[:, 1] > 0)
    of_arrays.update_state(val_y > 0, model(val_x)[:, 1] > 0)
    losses = [float(val_step(a, b)) for a, b in valid]
    every = mean, right, top, seen_rows, steps, level, val_mean, val_right, spread, positives, f1, areas
    seen += [*losses, *(float(metric.result()) for metric in every)]
    for metric in every:
        metric.reset_state()
weights = model.get_weights()
outside = float(of_arrays.result())
"""


@pytest.mark.soak
@pytest.mark.parametrize(("size", "graph"), [(3, True), (2, False), (2, True), (3, False)])
def test_metrics_and_losses_in_a_loop_of_ones_own_are_those_of_all_rows(groups: Any, size: int, graph: bool) -> None:
    cell = f"GRAPH = {graph}\n" + DATA + FED + GUIDE
    expected = groups.plain("SIZE = 0\n" + cell, "weights", "seen").values
    outcomes, notices = told(groups[size], f"SIZE = {size}\n" + cell, "weights", "seen")
    assert_same_weights(outcomes, expected["weights"], 1e-5)
    for outcome in outcomes:
        assert outcome.values["seen"] == pytest.approx(expected["seen"], abs=2e-5)
    assert any("'spread' (Spread) is summed" in notice for notice in notices)
    assert sum("was passed to 'level', 'sum'." in notice for notice in notices) == 1
    assert any("Keras loss objects and metrics" in notice for notice in notices)
    assert not any("Random numbers" in notice for notice in notices)


IN_GRAPH = """
right, both = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Sum()
model = mlp()


@tf.function
def evaluation(source):
    for a, b in source:
        right.update_state(b, model(a))
        both.update_state(tf.cast(b, tf.float32))
    return right.result(), both.result()


seen = [float(v) for v in evaluation(train)]
tested = [float(v) for v in (right.result(), both.result())]
"""


def test_results_in_graphs_are_those_of_all_rows(groups: Any) -> None:
    cell = DATA + FED + IN_GRAPH
    expected = groups.plain("SIZE = 0\n" + cell, "seen", "tested").values
    for outcome in succeeded(groups[3].run("SIZE = 3\n" + cell, "seen", "tested")):
        assert outcome.values["seen"] == pytest.approx(expected["seen"], abs=1e-5)
        assert outcome.values["tested"] == pytest.approx(expected["tested"], abs=1e-5)


@pytest.mark.parametrize(
    "derived", every(2, ["ds", "enumerate(ds)", "ds.take(9)", "ds.map(lambda a, b: (a, b)).prefetch(2)"])
)
def test_datasets_that_a_function_is_called_with_are_known_there(groups: Any, derived: str) -> None:
    rows = "for _, (a, b) in" if "enumerate" in derived else "for a, b in"
    cell = DATA + FED + IN_GRAPH.replace("for a, b in source", f"{rows} {derived.replace('ds', 'source')}")
    expected = groups.plain("SIZE = 0\n" + cell, "seen", "tested").values
    for outcome in succeeded(groups[2].run("SIZE = 2\n" + cell, "seen", "tested")):
        assert outcome.values["seen"] == pytest.approx(expected["seen"], abs=1e-5)
        assert outcome.values["tested"] == pytest.approx(expected["tested"], abs=1e-5)


@pytest.mark.parametrize("cut", ["source.filter(lambda a, b: b[0] > 0)", "source.unbatch()"])
def test_what_takes_shares_for_all_rows_is_refused_of_arguments_too(groups: Any, cut: str) -> None:
    for outcome in groups[2].run("SIZE = 2\n" + DATA + FED + IN_GRAPH.replace("in source", f"in {cut}")):
        assert "on a fed DataFrame would" in outcome.error


KEPT = """
model, logits = mlp(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", logits, metrics=["accuracy"])
if not hasattr(keras, "kept"):
    keras.kept = keras.metrics.TruePositives(), keras.metrics.SparseCategoricalAccuracy(), model
counts, right, model = keras.kept
before = [float(counts.result()), float(right.result())]
for a, b in train:
    counts.update_state(b > 0, model(a)[:, 1] > 0)
    right.update_state(b, model(a))
    model.compute_metrics(a, b, model(a))
after = [float(counts.result()), float(right.result()), float(model.get_metrics_result()["accuracy"])]
"""


@pytest.mark.soak
def test_metrics_are_those_of_one_process_from_cell_to_cell(groups: Any) -> None:
    cell, names = DATA + FED + KEPT, ("before", "after")
    forget = "import keras\ndel keras.kept"
    expected = [groups[0].run("SIZE = 0\n" + cell, *names)[0].values for _ in range(2)]
    groups[0].run(forget)
    for values in expected:
        for outcome in succeeded(groups[2].run("SIZE = 2\n" + cell, *names)):
            assert outcome.values["before"] == pytest.approx(values["before"], abs=1e-5)
            assert outcome.values["after"] == pytest.approx(values["after"], abs=1e-5)
    groups[2].run(forget)


ARRAYS = """
for a, b in train:
    pass
counts, mean = keras.metrics.TruePositives(), keras.metrics.Mean()
model = mlp()
for a, b in tf.data.Dataset.from_tensor_slices((val_x, val_y)).batch(16):
    counts.update_state(b > 0, model(a)[:, 1] > 0)
    mean.update_state(from_logits(b, model(a)))
seen = [float(counts.result()), float(mean.result())]
for a, b in train:
    for c, d in tf.data.Dataset.from_tensor_slices((val_x, val_y)).batch(16).take(2):
        counts.update_state(d > 0, model(c)[:, 1] > 0)
seen.append(float(counts.result()))
"""


@pytest.mark.soak
def test_rows_that_all_ranks_have_are_counted_once(groups: Any) -> None:
    cell = DATA + FED + ARRAYS
    expected = groups.plain("SIZE = 0\n" + cell, "seen").values["seen"]
    for outcome in succeeded(groups[2].run("SIZE = 2\n" + cell, "seen")):
        assert outcome.values["seen"] == pytest.approx(expected, abs=1e-5)


DRAWN_IN_A_GRAPH = """
model, mean = mlp(), keras.metrics.Mean()


@tf.function
def step(source):
    a, b = next(source)
    errors = tf.reduce_sum((model(a) - tf.one_hot(b, 3)) ** 2, 1)
    return tf.reduce_sum(errors) / tf.maximum(tf.cast(tf.shape(a)[0], tf.float32), 1.0)


source, seen = iter(train), []
for _ in range(6):
    mean.update_state(step(source))
    seen.append(float(mean.result()))
"""


def test_numbers_of_batches_that_a_function_draws_have_the_rows_of_these(groups: Any) -> None:
    cell = DATA + FED + DRAWN_IN_A_GRAPH  # the last batch has one row
    expected = groups.plain("SIZE = 0\n" + cell, "seen").values["seen"]
    for outcome in succeeded(groups[2].run("SIZE = 2\n" + cell, "seen")):
        assert outcome.values["seen"] == pytest.approx(expected, abs=1e-5)


BY_RANK = """
import tfos_magic as tfos
right, model = keras.metrics.SparseCategoricalAccuracy(), mlp()
first = tfos.rank() == 0
for a, b in train:
    if first:
        right.update_state(b, model(a))
        print(right.result())
"""


def test_a_cell_that_asks_for_its_rank_may_read_results_on_one(groups: Any) -> None:
    succeeded(groups[2].run("SIZE = 2\n" + DATA + FED + BY_RANK, seconds=40))


SAVING = """
import tempfile
model, optimizer, best = mlp(), keras.optimizers.Adam(0.01), 1e9
path = tempfile.mkdtemp() + "/best.weights.h5"
for epoch in range(6):
    seen = keras.metrics.Mean()
    for a, b in train:
        with tf.GradientTape() as tape:
            loss = from_logits(b, model(a, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))
        OF_LOOP
    score = float(SCORE)
    if score < best:
        best = score
        SAVE
        saved = epoch
"""
SAVES = {
    "save_weights": "model.save_weights(path)",
    "checkpoint": "tf.train.Checkpoint(model=model).write(path)",
    "get_weights": "kept = model.get_weights()",
}


@pytest.mark.soak
@pytest.mark.parametrize("save", every(4, SAVES))
def test_a_model_that_one_workers_rows_let_be_saved_is_refused(groups: Any, save: str) -> None:
    score = "-epoch * abs(tf.reduce_sum(a))"  # of the last batch, of which one worker has no row
    body = SAVING.replace("SAVE", SAVES[save]).replace("OF_LOOP", "pass").replace("SCORE", score)
    for outcome in groups[2].run("SIZE = 2\n" + DATA + FED + body):
        assert outcome.kind == "TrainingError", outcome.error
        assert "the workers saved the model" in outcome.error


@pytest.mark.soak
def test_a_model_that_metrics_let_be_saved_is_that_of_one_process(groups: Any) -> None:
    body = SAVING.replace("SAVE", SAVES["save_weights"]).replace("OF_LOOP", "seen.update_state(loss)")
    cell = DATA + FED + body.replace("SCORE", "seen.result()")
    expected = groups.plain("SIZE = 0\n" + cell, "saved", "best").values
    for outcome in succeeded(groups[2].run("SIZE = 2\n" + cell, "saved", "best")):
        assert outcome.values["saved"] == expected["saved"]
        assert outcome.values["best"] == pytest.approx(expected["best"], abs=1e-5)
