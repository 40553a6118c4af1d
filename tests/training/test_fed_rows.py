"""What a cell does by itself with fed rows: it sees those there are, and what would take a part for all is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded, told
from tests.training.harness import DATA, FED


def test_a_loop_counts_sums_and_collects_the_rows_there_are(groups: Any) -> None:
    cell = "SIZE = 3\n" + DATA + FED
    cell += """
single = sum(len(a) for a, b in fed(tf.data.Dataset.from_tensor_slices(x[:7]).map(lambda a: (a, a)).batch(1)))
rows = sum(len(a) for a, b in train)
total = sum(float(tf.reduce_sum(a)) for a, b in train)
collected = np.concatenate([b for _, b in train.as_numpy_iterator()]).tolist()
numbered = sum(len(a) for _, (a, b) in train.enumerate())
columns = sum(len(a) for a in train.map(lambda a, b: b))
means = [float(m) for m in train.take(2).map(lambda a, b: tf.reduce_mean(a))]


@tf.function
def count(source):
    seen = 0
    for a, b in source:
        seen += len(a)
    return seen


graphed = int(count(train))
batches = len(train), int(train.cardinality()), int(train.skip(2).cardinality())
"""
    names = "single", "rows", "total", "collected", "numbered", "columns", "graphed"
    outcomes = [one.values for one in succeeded(groups[3].run(cell, *names, "means", "batches", "features", "labels"))]
    for name in ("rows", "numbered", "columns", "graphed"):
        assert sum(values[name] for values in outcomes) == 131, name
    assert sum(values["single"] for values in outcomes) == 7
    first = outcomes[0]
    assert abs(sum(values["total"] for values in outcomes) - first["features"][:131].sum()) < 1e-3
    assert sorted(label for values in outcomes for label in values["collected"]) == sorted(
        first["labels"][:131].tolist()
    )
    assert {values["batches"] for values in outcomes} == {(6, 6, 4)}


LOOP = """
keras.utils.set_random_seed(3)
x = features[:131, :9].repeat(4, 1).reshape(131, 6, 6, 1)
train = fed(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).take(7))
model = keras.Sequential([
    keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.BatchNormalization(),
    keras.layers.MaxPooling2D(2), keras.layers.Flatten(), keras.layers.Dense(3)])
optimizer = keras.optimizers.SGD(0.05)
mean, losses = keras.metrics.Mean(), []


def step(a, b):
    with tf.GradientTape() as tape:
        loss = from_logits(b, model(a, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    mean.update_state(loss)
    mean.update_state(tf.reduce_mean(a))
    return loss


step = tf.function(step) if GRAPH else step
for a, b in train:
    losses.append(float(step(a, b)))
weights, finite = model.get_weights(), bool(np.isfinite(mean.result()))
shapes = [model(a[:0]).shape[0] for a, b in train.take(1)] if SIZE else []
"""


@pytest.mark.parametrize(("graph", "batch"), every(2, [(True, 1), (False, 26)]))
def test_a_loop_whose_ranks_have_no_rows_gives_weights_and_losses_of_one_process(
    groups: Any, graph: bool, batch: int
) -> None:
    cell = f"GRAPH, BATCH = {graph}, {batch}\n" + DATA + FED + LOOP
    expected = groups.plain("SIZE = 0\n" + cell, "weights", "losses")
    outcomes = succeeded(groups[3].run("SIZE = 3\n" + cell, "weights", "losses", "finite", "shapes"))
    assert_same_weights(outcomes, expected.values["weights"], 1e-5)
    for outcome in outcomes:
        assert outcome.values["finite"]
        assert outcome.values["shapes"] == [0]
        assert outcome.values["losses"] == pytest.approx(expected.values["losses"], abs=1e-5)


REFUSED = {
    "unbatch": ("list(train.unbatch().take(5))", "df.limit(5)"),
    "rows of an unbatched feed": ("len(train.map(lambda a, b: b).unbatch())", "df.limit(5)"),
    "batched anew": ("for a, b in train.rebatch(10):\n    pass", "--batch-size"),
    "fit on batches made anew": (
        "model = mlp()\nmodel.compile('adam', from_logits)\n"
        "model.fit(train.unbatch().batch(9).repeat(), steps_per_epoch=3, verbose=0)",
        "--batch-size",
    ),
    "filter": ("for a, b in train.filter(lambda a, b: b[0] > 0):\n    pass", "df.filter"),
    "reduce": ("train.reduce(0, lambda n, batch: n + 1)", "df.agg"),
    "filter in a graph": (
        "@tf.function\ndef loop():\n    for _ in train.filter(lambda a, b: b[0] > 0):\n        tf.print(1)\n\nloop()",
        "df.filter",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_take_a_workers_rows_for_all_is_refused(groups: Any, case: str) -> None:
    body, remedy = REFUSED[case]
    for outcome in groups[2].run("SIZE = 2\n" + DATA + FED + body):
        assert outcome.kind == "TrainingError", outcome.error
        assert remedy in outcome.error


@pytest.mark.parametrize("iterator", ["train", "batches"])
def test_a_generator_of_a_pipeline_that_goes_over_fed_rows_is_refused_in_a_loop(groups: Any, iterator: str) -> None:
    cell = f"""
batches = iter(train)


def doubled():
    for a, b in {iterator}:
        yield 2 * a, b


spec = tf.TensorSpec((None, 12)), tf.TensorSpec((None,), "int64")
for a, b in tf.data.Dataset.from_generator(doubled, output_signature=spec):
    pass
"""
    for outcome in groups[2].run("SIZE = 2\n" + DATA + FED + cell):
        assert outcome.kind == "UnknownError", outcome.error
        assert "in a thread beside the cell" in outcome.error
        assert "df.toPandas()" in outcome.error


def test_a_share_that_the_cell_asked_for_may_be_reduced_and_cut(groups: Any) -> None:
    cell = """
import tfos_magic as tfos
mine = tfos.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(26))
rows = int(mine.reduce(np.int64(0), lambda n, batch: n + tf.shape(batch[0], tf.int64)[0]))
again = len(list(mine.unbatch()))
"""
    outcomes, notices = told(groups[2], DATA + cell, "rows", "again")
    for name in ("rows", "again"):
        assert sum(outcome.values[name] for outcome in outcomes) == 131
    assert notices == []


NOTICE = "each worker sees only its own rows"
TRAINED = """
optimizer = keras.optimizers.Adam(0.01)
model = mlp()


@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = from_logits(b, model(a, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))


for _ in range(2):
    for a, b in train:
        step(a, b)
"""
BY_HAND = """
model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
model.compile("adam", from_logits)
for a, b in train:
    model.train_on_batch(a, b)
for a, b in train:
    model.test_on_batch(a, b)
model.fit(train, validation_data=train, verbose=0)
"""


@pytest.mark.parametrize(
    ("body", "told_so"),
    every(
        3,
        [
            ("for a, b in train.take(1):\n    print(a.shape)\n", True),
            ("a, b = next(iter(train))\n", True),
            (TRAINED + "for a, b in train:\n    model(a)\n", True),
            (TRAINED, False),
            (BY_HAND, False),
            ("import tfos_magic as tfos\nn = tfos.allreduce(sum(len(a) for a, b in train), op='sum')\n", False),
        ],
    ),
    ids=["a look", "one batch", "an evaluation", "a training loop", "steps by hand", "an all-reduce"],
)
def test_a_notice_says_once_that_a_loop_sees_this_workers_rows_where_it_trains_nothing(
    groups: Any, body: str, told_so: bool
) -> None:
    _, notices = told(groups[2], "SIZE = 2\n" + DATA + FED + body)
    assert sum(NOTICE in notice for notice in notices) == told_so
    assert not [notice for notice in notices if "Random numbers" in notice]


APART = """
weight = tf.Variable(tf.zeros([12, 3]))
for a, b in train:
    error = tf.nn.softmax(a @ weight) - tf.one_hot(b, 3)
    weight.assign_sub(EXCHANGED(0.1 * tf.matmul(a, error, transpose_a=True)))
"""


def test_weights_that_a_loop_leaves_different_on_the_workers_are_refused(groups: Any) -> None:
    cell = "SIZE = 2\n" + DATA + FED + APART
    for outcome in groups[2].run(cell.replace("EXCHANGED", "")):
        assert outcome.kind == "TrainingError", outcome.error
        assert "tfos.allreduce(gradient)" in outcome.error
    succeeded(groups[2].run("import tfos_magic as tfos\n" + cell.replace("EXCHANGED", "tfos.allreduce")))


def test_gradients_that_a_loop_applies_by_hand_are_those_of_all_rows(same_as_plain: Any) -> None:
    cell = """
weight = tf.Variable(tf.zeros([12, 3]))
for a, b in train:
    with tf.GradientTape() as tape:
        loss = from_logits(b, a @ weight)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
history, weights = {}, [weight.numpy()]
"""
    same_as_plain("SIZE = collectives.size if collectives else 0\n" + DATA + FED + cell, 2)


MEAN = """
total = sum(float(tf.reduce_sum(tf.cast(b, tf.float32))) for a, b in train) / 131
"""
OF_ONE_WORKERS_ROWS = {
    "class weights": (
        MEAN + "model.fit(train, class_weight={0: total, 1: 1.0, 2: 1.0}, verbose=0)",
        "different class weights",
    ),
    "a number in a map": (
        MEAN + "model.fit(train.map(lambda a, b: (a - total, b)), verbose=0)",
        "different constants used in map() on the fed DataFrame",
    ),
    "a number in a loss": (
        MEAN + "model.compile('sgd', lambda t, p: total * from_logits(t, p))\nmodel.fit(train, verbose=0)",
        "differs between workers for the same rows",
    ),
    "a number in a layer": (
        MEAN
        + """
moved = keras.Sequential([keras.Input((12,)), keras.layers.Lambda(lambda rows: rows - total), model])
moved.compile("sgd", from_logits)
moved.fit(train, verbose=0)
""",
        "differs between workers for the same rows",
    ),
    "a learning rate": (
        MEAN + "model.optimizer.learning_rate = total\nmodel.fit(train, verbose=0)",
        "different learning rates",
    ),
    "a learning rate of a callback": (
        """
class ByRows(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen = [float(from_logits(b, self.model(a))) for a, b in train.take(2)]
        self.model.optimizer.learning_rate = 0.1 * seen[0]


model.fit(train, epochs=3, verbose=0, callbacks=[ByRows()])
""",
        "different learning rates",
    ),
    "a score that a callback goes by": (
        """
class Score(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = np.mean([float(from_logits(b, self.model(a))) for a, b in train.take(5)])


stop = keras.callbacks.EarlyStopping("score", patience=9, mode="min")
model.fit(train, epochs=2, verbose=0, callbacks=[Score(), stop])
""",
        "different values of score",
    ),
    "weights chosen after fit": (
        """
kept = []
keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: kept.append(model.get_weights()))
model.fit(train, epochs=3, verbose=0, callbacks=[keep])
model.set_weights(kept[sum(len(b) for a, b in train) % 3])
""",
        "weights have diverged",
    ),
    "a learning rate within an epoch": (
        """
class ByClock(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        import time
        self.model.optimizer.learning_rate = 0.05 + time.perf_counter() % 0.01

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.05


model.fit(x, y, epochs=2, verbose=0, callbacks=[ByClock()])
""",
        "weights have diverged",
    ),
}


@pytest.mark.parametrize(("cell", "words"), every(4, OF_ONE_WORKERS_ROWS.values()), ids=list(OF_ONE_WORKERS_ROWS))
def test_a_training_by_numbers_that_workers_do_not_have_alike_is_refused(groups: Any, cell: str, words: str) -> None:
    model = "model = mlp()\nmodel.compile('sgd', from_logits)\n"
    for outcome in groups[2].run("SIZE = 2\n" + DATA + FED + model + cell):
        assert outcome.kind == "TrainingError"
        assert words in outcome.error


def test_numbers_that_all_workers_have_alike_train(groups: Any) -> None:
    cell = (
        DATA
        + FED
        + """
import tfos_magic as tfos

total = sum(float(tf.reduce_sum(tf.cast(b, tf.float32))) for a, b in train)
if SIZE:
    total = tfos.allreduce(total, op="sum")
total = float(total) / 131
keras.utils.set_random_seed(1)
model = mlp()
model.compile("sgd", lambda t, p: total * keras.losses.sparse_categorical_crossentropy(t, p, from_logits=True))
model.fit(train.map(lambda a, b: (a - total, b)), class_weight={0: total, 1: 1.0, 2: 1.0}, epochs=2, verbose=0)
weights = model.get_weights()
"""
    )
    expected = groups[0].run("SIZE = 0\n" + cell, "weights")[0]
    assert_same_weights(succeeded(groups[2].run("SIZE = 2\n" + cell, "weights")), expected.values["weights"], 1e-5)


@pytest.mark.soak
def test_a_look_before_a_fit_is_told_of(groups: Any) -> None:
    fit = "model = mlp()\nmodel.compile('sgd', from_logits)\nmodel.fit(train, verbose=0)\n"
    rows, shared = "rows = sum(len(a) for a, b in train)\n", "import tfos_magic as tfos\ntfos.allgather([1.0])\n"
    callback = f"""
class Counts(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        global rows
        {rows}
model = mlp()
model.compile("sgd", from_logits)
model.fit(train, validation_data=train, verbose=0, callbacks=[Counts()])
"""
    for look, times in ((rows, 1), (rows + fit + shared, 1), (rows + shared, 0), (callback, 1), ("", 0)):
        _, notices = told(groups[2], "SIZE = 2\n" + DATA + FED + look + fit)
        assert len([text for text in notices if "The cell itself loops over a fed DataFrame" in text]) == times


@pytest.mark.parametrize("step", ["fit", "loop"])
def test_initial_weights_made_of_a_workers_own_rows_are_refused(groups: Any, step: str) -> None:
    cell = (
        f"SIZE = 2\n{DATA}{FED}"
        + """
share = float(np.concatenate([b.numpy() for _, b in train]).mean())
bias = keras.initializers.Constant(share)
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3, bias_initializer=bias)])
"""
    )
    if step == "fit":
        cell += "model.compile('sgd', from_logits)\nmodel.fit(train, verbose=0)\n"
    else:
        cell += """
optimizer = keras.optimizers.SGD(0.1)
for a, b in train:
    with tf.GradientTape() as tape:
        loss = from_logits(b, model(a))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""
    for outcome in groups[2].run(cell):
        assert "the workers start with different weights" in outcome.error
