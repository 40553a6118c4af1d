"""What cannot be made equal to one process is refused, alike on every rank, and the next cell trains."""

from __future__ import annotations

import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded
from tests.training.harness import DATA, FED

REFUSED = {
    "circle, in a loop": (
        FED.replace("SIZE", "2") + "loss, optimizer = keras.losses.Circle(), keras.optimizers.SGD()\n"
        "for rows, labels in train:\n"
        "    with tf.GradientTape() as tape:\n"
        "        value = loss(labels, model(rows))\n"
        "    optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)",
        "-n 1",
    ),
    "parameter-servers": (
        "tf.distribute.ParameterServerStrategy(None)",
        "Delete this line",
    ),
    "float8": (
        "model.build((None, 12))\n"
        "model.layers[0].quantize('float8')\n"
        "model.compile('adam', from_logits)\nmodel.fit(x, y, verbose=0)",
        "by the largest in a batch",
    ),
    "a function set as the training's": (
        "model.compile('adam', from_logits)\n"
        "model.train_function = lambda iterator: {'loss': 0.0}\nmodel.fit(x, y, verbose=0)",
        "Put the step into Model.train_step",
    ),
    "a maker of such functions": (
        "class Net(keras.Sequential):\n"
        "    def make_train_function(self, force=False):\n"
        "        self.train_function = lambda iterator: {'loss': 0.0}\n"
        "model = Net(model.layers)\n"
        "model.compile('adam', from_logits)\nmodel.fit(x, y, verbose=0)",
        "Put the step into Model.train_step",
    ),
    "different-rows": (
        "model.compile('adam', from_logits)\nmodel.fit(x[:100 + rank], y[:100 + rank], verbose=0)",
        "rank 0: 4 batches, 100 rows; rank 1: 4 batches, 101 rows",
    ),
    "different-batches": (
        "from tfos_magic.training.inputs.marks import mark_sharded\n"
        "model.compile('adam', from_logits)\n"
        "model.fit(mark_sharded(tf.data.Dataset.from_tensor_slices((x, y)).batch(20 + 5 * rank)), verbose=0)",
        "rank 0: 7 batches, unknown rows, fed; rank 1: 6 batches",
    ),
    "unknown-length": (
        "from tfos_magic.training.inputs.marks import mark_sharded\n"
        "model.compile('adam', from_logits)\n"
        "fed = mark_sharded(tf.data.Dataset.from_tensor_slices((x, y)).batch(9))\n"
        "model.fit(fed.filter(lambda a, b: b[0] > 0), verbose=0)",
        "assert_cardinality",
    ),
    "mixed": (
        "from tfos_magic.training.inputs.marks import mark_sharded\n"
        "model.compile('adam', from_logits)\n"
        "fed = mark_sharded(tf.data.Dataset.from_tensor_slices(x).batch(9))\n"
        "model.fit(tf.data.Dataset.zip((fed, tf.data.Dataset.from_tensor_slices(y).batch(9))), verbose=0)",
        "into one DataFrame",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_equal_is_refused_with_what_to_write_instead(groups, case: str) -> None:
    body, remedy = REFUSED[case]
    for outcome in groups[2].run(DATA + "model = mlp()\n" + body):
        assert outcome.kind == "TrainingError", outcome.error
        assert remedy in outcome.error


def test_a_step_that_counts_on_the_rows_of_a_whole_batch_fails_with_that_said(groups) -> None:
    cell = """
class Noisy(keras.Model):
    def __init__(self, rows):
        super().__init__()
        self.net, self.rows = mlp(), rows
        self.compile("sgd")

    def train_step(self, data):
        with tf.GradientTape() as tape:
            made = self.net(data[0])
            loss = tf.reduce_mean((made - tf.ones((self.rows, 3))) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.net.trainable_variables), self.net.trainable_variables)
        return {"loss": loss}


Noisy(ROWS).fit(x[:96], y[:96], batch_size=48, verbose=0)
"""
    for rows, is_told in (("48", True), ("36", False)):
        for outcome in groups[2].run(DATA + cell.replace("ROWS", rows)):
            assert "Incompatible shapes" in outcome.error or "must be equal" in outcome.error, outcome.error
            assert (
                "If the step expects all rows of a batch: each of 2 workers has only part" in outcome.error
            ) is is_told


ROWS_OF_SHAPE = """
class Doubled(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.compile(keras.optimizers.SGD(0.1))

    def train_step(self, data):
        rows = data[0].shape[0]
        wanted = tf.concat([tf.ones((rows, 3)), tf.zeros((rows, 3))], 0)
        with tf.GradientTape() as tape:
            made = self.net(tf.concat([data[0], 2 * data[0]], 0))
            loss = tf.reduce_sum((made - wanted) ** 2) / rows
        self.optimizer.apply(tape.gradient(loss, self.net.trainable_variables), self.net.trainable_variables)
        return {"loss": loss}


model = Doubled()
history = model.fit(DATASET, epochs=2, verbose=0).history
weights = model.get_weights()
"""


@pytest.mark.parametrize("rows", every(2, [25, 24]))
def test_a_number_of_rows_that_a_shape_tells_is_that_of_the_share(groups, same_as_plain, rows: int) -> None:
    dataset = f"tf.data.Dataset.from_tensor_slices((x, y)).batch({rows}, drop_remainder=True)"
    same_as_plain(DATA + ROWS_OF_SHAPE.replace("DATASET", dataset), 2)


def test_a_number_of_rows_that_no_shape_tells_is_said_to_be_unknown(groups) -> None:
    dataset = "tf.data.Dataset.from_tensor_slices((x, y)).batch(24)"
    for outcome in groups[2].run(DATA + ROWS_OF_SHAPE.replace("DATASET", dataset)):
        assert "Use tf.shape(x)[0], or make batch_size a multiple" in outcome.error


def test_one_worker_alone_refuses_no_loss(groups) -> None:
    circle = "model = mlp()\nmodel.compile('adam', keras.losses.Circle())\nmodel.fit(x, y, verbose=0)"
    succeeded(groups[1].run(DATA + circle))


def test_an_unknown_strategy_is_refused_by_name(groups) -> None:
    cell = """
from tfos_magic.training.distributed_cell import RunContext, StopSignal, distributed

try:
    with distributed(RunContext("x", collectives, print, StopSignal(), strategy="gossip")):
        pass
except Exception as error:
    text = str(error)
"""
    text = succeeded(groups[1].run(cell, "text"))[0].values["text"]
    assert "'gossip': choose one of" in text
    assert "sync" in text


def test_a_fit_in_a_thread_of_the_cells_own_is_refused(groups) -> None:
    cell = """
from concurrent.futures import ThreadPoolExecutor


def one(part):
    model = mlp()
    model.compile("sgd", from_logits)
    return model.fit(x[part::2], y[part::2], verbose=0)


with ThreadPoolExecutor(2) as pool:
    list(pool.map(one, range(2)))
"""
    for outcome in groups[2].run(DATA + cell):
        assert "in a thread that the cell started" in outcome.error


@pytest.mark.parametrize(
    ("size", "hardest"),
    every(
        7, [(29, "14"), (10, "4"), (10, "3"), (8, "3"), (4, "2"), (2, "1"), (16, "tf.minimum(8, tf.shape(losses)[0])")]
    ),
)
def test_losses_of_the_hardest_rows_are_those_of_all_workers(groups, size: int, hardest: str) -> None:
    cell = """
def hardest(labels, outputs):
    losses = keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    return keras.ops.mean(keras.ops.top_k(losses, HARDEST)[0])


model = mlp()
model.compile("sgd", hardest)
model.fit(x[:SIZE], y[:SIZE], batch_size=SIZE, epochs=2, verbose=0)
weights = model.get_weights()
"""
    program = DATA + f"SIZE = {size}" + cell.replace("HARDEST", hardest)
    expected = groups.plain(program, "weights").values["weights"]
    assert_same_weights(succeeded(groups[2].run(program, "weights")), expected, 1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("kind", every(2, ["centred", "attention"]))
def test_rows_that_look_at_each_other_are_found_where_a_worker_has_one(groups, kind: str) -> None:
    layer = {
        "centred": "keras.layers.Lambda(lambda a: a - keras.ops.mean(a, 0, keepdims=True))",
        "attention": "keras.layers.Lambda(lambda a: keras.ops.softmax(a @ keras.ops.transpose(a)) @ a)",
    }[kind]
    cell = f"""
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(5), {layer}, keras.layers.Dense(3)])
model.compile("sgd", from_logits)
model.fit(x[:2], y[:2], batch_size=2, verbose=0)
"""
    for outcome in groups[2].run(DATA + cell):
        assert "mixes the rows of a batch" in outcome.error
