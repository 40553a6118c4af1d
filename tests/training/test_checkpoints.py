"""A run that goes on from a checkpoint ends with the weights and the history of the run that was not disturbed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import Groups, assert_same_weights, succeeded
from tests.training.harness import DATA, Outcome
from tfos_magic.checkpoints.checkpoint import assemble

MODEL = """
model = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), from_logits, metrics=["accuracy"])
"""
ADAM = MODEL.replace("SGD(0.1, momentum=0.9)", "Adam(0.01)")
ARRAYS = (
    MODEL + "history = model.fit(x, y, batch_size=29, epochs=4, validation_data=(val_x, val_y), verbose=0).history\n"
)
CALLBACKS = (
    MODEL
    + """
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, min_delta=0.05, restore_best_weights=True)
slow = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.2)
history = model.fit(x, y, batch_size=29, epochs=9, validation_data=(val_x, val_y), verbose=0,
                    callbacks=[stop, slow]).history
"""
)
EXECUTIONS = """
model = mlp()
model.compile("adam", from_logits, metrics=["accuracy"], steps_per_execution=2)
history = model.fit(x, y, batch_size=13, epochs=3, verbose=0).history
"""
SHUFFLED = (
    ADAM
    + """
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(29)
history = model.fit(train, epochs=4, verbose=0).history
"""
)
NOISY = (
    MODEL
    + """
noisy = lambda a, b: (a + tf.random.normal(tf.shape(a), stddev=0.1), b)
train = tf.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(50).batch(29).map(noisy)
history = model.fit(train, epochs=4, verbose=0).history
"""
)
REPEATED = (
    MODEL
    + """
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(29, drop_remainder=True).repeat()
history = model.fit(train, epochs=4, steps_per_epoch=3, verbose=0).history
"""
)
GENERATOR = (
    MODEL
    + """
def batches():
    while True:
        rows = np.random.permutation(131)[:29]
        yield x[rows], y[rows]


history = model.fit(batches(), epochs=4, steps_per_epoch=4, verbose=0).history
"""
)
PY_DATASET = (
    MODEL
    + """
class Batches(keras.utils.PyDataset):
    epoch = 0

    def __len__(self):
        return 5

    def __getitem__(self, index):
        noise = np.random.normal(scale=0.1, size=(29, 12)).astype("float32")[: 131 - index * 29]
        return x[index * 29:(index + 1) * 29] * (1 + self.epoch / 10) + noise, y[index * 29:(index + 1) * 29]

    def on_epoch_end(self):
        self.epoch += 1


history = model.fit(Batches(), epochs=4, shuffle=True, verbose=0).history
"""
)
FED = (
    ADAM
    + """
from tfos_magic.training.inputs.marks import mark_sharded
from tfos_magic.training.inputs.sharding import rank_slice


def share():
    for start in range(0, 131, 29):
        batch = x[start:start + 29], y[start:start + 29]
        begin, end = rank_slice(len(batch[0]), rank, SIZE)
        yield batch[0][begin:end], batch[1][begin:end]


spec = tf.TensorSpec((None, 12), tf.float32), tf.TensorSpec((None,), tf.int64)
fed = tf.data.Dataset.from_generator(share, output_signature=spec).apply(tf.data.experimental.assert_cardinality(5))
fed = mark_sharded(fed).cache().shuffle(3, seed=1).prefetch(2)
history = model.fit(fed, epochs=4, verbose=0).history
"""
)
SPOOLED = """
import pathlib, tempfile
from tests.unit.feed.test_spooled_dataset import fill
from tfos_magic.columns.selection import Selection
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset
from tfos_magic.feed.agent.spool import Spool

spool = Spool(tempfile.gettempdir())
handle = fill(spool, [[60, 20], [51]], rank, SIZE)
flags = Selection(label="flag")
fed, seen = (feed_dataset(handle, batch_size=29, selection=flags, shuffle=True, seed=4) for _ in range(2))
fed, seen = (each.map(lambda columns, flag: (columns["x"] / 50 - 1, flag, columns["id"])) for each in (fed, seen))
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
history = model.fit(fed, epochs=4, validation_data=seen, verbose=0).history
"""
DRAWING = (
    MODEL
    + """
class Jitter(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1 * np.random.uniform() + 0.01 * float(keras.random.uniform([]))


history = model.fit(x, y, batch_size=29, epochs=4, verbose=0, callbacks=[Jitter()]).history
"""
)
TWO_FITS = """
model = mlp()
model.layers[0].trainable = False
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), from_logits)
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(29)
first = model.fit(train, epochs=3, verbose=0)
between = [float(model.evaluate(val_x, val_y, verbose=0)), float(np.random.uniform())]
model.layers[0].trainable = True
model.compile("adam", from_logits)
history = model.fit(train, epochs=4, verbose=0).history
history.update(first=first.history["loss"], between=between)
"""
WEIGHTS = "weights = model.get_weights()\n"


def undisturbed(
    groups: Groups, size: int, cell: str, every: int = 0, strategy: str = "sync"
) -> tuple[list[Outcome], list[Any]]:
    """Run a cell to its end; gives the outcomes and the parts of all checkpoints that were taken on the way."""
    parts: list[Any] = []

    def collect(rank: int, message: Any) -> None:
        if type(message).__name__ == "CheckpointPart":
            parts.append(message)

    outcomes = groups[size].run(
        cell, "weights", "history", checkpoints={"asked": True, "every": every}, on_message=collect, strategy=strategy
    )
    return succeeded(outcomes), parts


def resume(
    groups: Groups,
    size: int,
    cell: str,
    parts: list[Any],
    at: str,
    strategy: str = "sync",
    *names: str,
    past: list[int] | None = None,
) -> list[Outcome]:
    """Run a cell on from the checkpoint ``at``, in processes that know nothing else of the run before; ``past`` gets
    the epochs of that run that are said again."""
    heard = [] if past is None else past

    def hear(rank: int, message: Any) -> None:
        heard.extend([message.epoch] if type(message).__name__ == "EpochEnd" and message.past else [])

    fit = int(at[3])
    chosen = [p for p in parts if p.name.startswith((f"{at}-", *(f"fit{k}-end-" for k in range(fit))))]
    assert any(p.name.startswith(f"{at}-") for p in chosen), f"no {at} among {sorted({p.name for p in parts})}"
    return groups[size].run(
        cell,
        "weights",
        "history",
        *names,
        checkpoints={"asked": True},
        resume=chosen,
        strategy=strategy,
        on_message=hear,
    )


def assert_equal(resumed: list[Outcome], full: list[Outcome], tolerance: float = 1e-6) -> None:
    assert_same_weights(succeeded(resumed), full[0].values["weights"], tolerance)
    for after, before in zip(resumed, full, strict=True):
        assert after.values["history"].keys() == before.values["history"].keys()
        for name, values in before.values["history"].items():
            np.testing.assert_allclose(after.values["history"][name], values, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("size", "fit", "every", "at"),
    every(
        24,
        [
            (2, ARRAYS, 0, "fit0-epoch2-step0"),
            (3, ARRAYS, 3, "fit0-epoch1-step4"),
            (1, CALLBACKS, 3, "fit0-epoch3-step3"),
            (2, CALLBACKS, 0, "fit0-epoch3-step0"),
            (2, EXECUTIONS, 4, "fit0-epoch1-step4"),
            (1, SHUFFLED, 3, "fit0-epoch2-step2"),
            (2, NOISY, 3, "fit0-epoch2-step2"),
            (2, REPEATED, 2, "fit0-epoch2-step2"),
            (2, GENERATOR, 3, "fit0-epoch2-step1"),
            (1, PY_DATASET, 0, "fit0-epoch2-step0"),
            (2, PY_DATASET, 3, "fit0-epoch1-step4"),
            (2, FED, 0, "fit0-epoch3-step0"),
            (2, SPOOLED, 3, "fit0-epoch2-step2"),
            (2, DRAWING, 0, "fit0-epoch2-step0"),
            (2, TWO_FITS, 0, "fit1-epoch2-step0"),
        ],
    ),
)
def test_a_resumed_run_equals_the_undisturbed_one(groups: Groups, size: int, fit: str, every: int, at: str) -> None:
    cell = f"SIZE = {size}\n" + DATA + fit + WEIGHTS
    full, parts = undisturbed(groups, size, cell, every)
    assert_equal(resume(groups, size, cell, parts, at), full)


KEEPING = """
import collections

class Waits:
    epochs = 0

class Keeps(keras.callbacks.Callback):
    def __init__(self, seen):
        super().__init__()
        self.seen, self.by_epoch, self.known = seen, {}, set()
        self.last, self.grouped = collections.deque(maxlen=3), collections.defaultdict(list)
        self.counted, self.constant, self.waits = tf.Variable(0.0), tf.constant(0.0), Waits()

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(epoch)
        self.by_epoch[epoch] = epoch / 2
        self.known.add(epoch)
        self.last.append(epoch)
        self.grouped[epoch % 2].append(epoch)
        self.counted.assign_add(1.0)
        self.constant = self.constant + 1.0
        self.waits.epochs += 1
        if len(self.last) == 3:
            self.model.optimizer.learning_rate = 0.5 * float(self.model.optimizer.learning_rate)

seen = []
model = mlp()
model.compile(keras.optimizers.SGD(0.1), from_logits)
keeps = Keeps(seen)
history = model.fit(x, y, batch_size=29, epochs=6, verbose=0, callbacks=[keeps]).history
kept = [seen, keeps.by_epoch, keeps.known, list(keeps.last), dict(keeps.grouped), float(keeps.counted)]
kept += [float(keeps.constant), seen is keeps.seen, keeps.last.maxlen]
"""


@pytest.mark.soak
def test_what_callbacks_keep_in_containers_and_variables_goes_on_with_them(groups: Groups) -> None:
    cell = DATA + KEEPING + WEIGHTS
    full, parts = undisturbed(groups, 2, cell)
    chosen = [part for part in parts if part.name.startswith("fit0-epoch4-step0-")]
    given: dict[str, Any] = {"checkpoints": {"asked": True}, "resume": chosen}
    resumed, told, _ = notices_of(groups[2], cell, "weights", "history", "kept", **given)
    assert_equal(resumed, full)
    numbers, halves = set(range(6)), {epoch: epoch / 2 for epoch in range(6)}
    grouped = {0: [0, 2, 4], 1: [1, 3, 5]}
    for outcome in resumed:
        assert outcome.values["kept"] == [list(range(6)), halves, numbers, [3, 4, 5], grouped, 6.0, 6.0, True, 3]
    assert [text for text in told if "goes on with waits as the cell makes" in text]


OWN_OPTIMIZERS = """
class Parts(keras.Model):
    def __init__(self):
        super().__init__()
        self.low = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8)])
        self.high = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
        self.built = True
        HELD
        for name, optimizer in self.held():
            optimizer.build(getattr(self, name).trainable_variables)

    def call(self, x):
        return self.high(keras.ops.tanh(self.low(x)))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = from_logits(y, self(x, training=True))
        for name, optimizer in self.held():
            variables = getattr(self, name).trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


model = Parts()
model.compile()
history = model.fit(x, y, batch_size=29, epochs=6, verbose=0).history
"""
HELD = {
    "a dict": """self.own = {"low": keras.optimizers.Adam(0.02), "high": keras.optimizers.Adam(0.01)}
        self.held = self.own.items""",
    "a list": """self.own = [("low", keras.optimizers.Adam(0.02)), ("high", keras.optimizers.Adam(0.01))]
        self.kept = [each for _, each in self.own]
        self.held = lambda: zip(("low", "high"), self.kept)""",
    "compiled parts": """self.low.compile(keras.optimizers.Adam(0.02))
        self.high.compile(keras.optimizers.Adam(0.01))
        self.held = lambda: ((name, getattr(self, name).optimizer) for name in ("low", "high"))""",
}


@pytest.mark.parametrize("held", every(3, list(HELD)))
def test_optimizers_go_on_wherever_a_step_of_the_models_own_has_them(groups: Groups, held: str) -> None:
    cell = DATA + OWN_OPTIMIZERS.replace("HELD", HELD[held]) + WEIGHTS
    full, parts = undisturbed(groups, 1, cell)
    assert_equal(resume(groups, 1, cell, parts, "fit0-epoch3-step0"), full)


def notices_of(group: Any, cell: str, *names: str, **run: Any) -> tuple[list[Outcome], list[str], list[str]]:
    """Outcomes, notices, and the labels of the checkpoints that were taken, each once and in their order."""
    told: list[str] = []
    taken: dict[str, None] = {}

    def hear(rank: int, message: Any) -> None:
        if type(message).__name__ == "Notice":
            told.append(message.text)
        elif type(message).__name__ == "CheckpointPart":
            taken[message.name[:-9]] = None

    return group.run(cell, *names, on_message=hear, **run), told, list(taken)


@pytest.mark.soak
def test_a_run_goes_on_with_another_number_of_workers(groups: Groups) -> None:
    cell = DATA + EXECUTIONS.replace(", steps_per_execution=2", "") + WEIGHTS
    full, parts = undisturbed(groups, 2, cell, every=3)
    for size in (1, 3):
        outcomes = succeeded(resume(groups, size, cell, parts, "fit0-epoch1-step7"))
        assert_same_weights(outcomes, full[0].values["weights"], 1e-5)


@pytest.mark.soak
def test_fits_that_were_over_are_not_trained_again_and_a_longer_one_trains_on(groups: Groups) -> None:
    cell = DATA + (
        """
begun = []
count = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch))
model = mlp()
model.compile("adam", from_logits, metrics=["accuracy"])
history = model.fit(x, y, batch_size=29, epochs=EPOCHS, verbose=0, callbacks=[count])
epochs, history = history.epoch, history.history
weights = model.get_weights()
"""
    )
    short, parts = undisturbed(groups, 2, "EPOCHS = 3\n" + cell)
    long, _ = undisturbed(groups, 2, "EPOCHS = 5\n" + cell)
    names = ("begun", "epochs")
    past: list[int] = []
    again = resume(groups, 2, "EPOCHS = 3\n" + cell, parts, "fit0-end", "sync", *names, past=past)
    assert_equal(again, short, 0)
    assert past == [0, 1, 2]
    assert again[1].values["begun"] == []
    assert again[1].values["epochs"] == [0, 1, 2]
    further = resume(groups, 2, "EPOCHS = 5\n" + cell, parts, "fit0-end", "sync", *names)
    assert_equal(further, long)
    assert further[0].values["begun"] == [3, 4]


@pytest.mark.soak
def test_a_checkpoint_of_another_model_is_refused_on_every_rank_naming_the_difference(groups: Groups) -> None:
    cell = DATA + ARRAYS + WEIGHTS
    _, parts = undisturbed(groups, 2, cell)
    for outcome in resume(groups, 2, cell.replace("Dense(16", "Dense(17"), parts, "fit0-epoch2-step0"):
        assert outcome.kind == "TrainingError"
        assert "shape (12, 16)" in outcome.error
        assert "shape (12, 17)" in outcome.error
        assert "--checkpoint-dir" in outcome.error


@pytest.mark.soak
def test_the_middle_of_an_epoch_is_not_gone_on_from_with_other_batches(groups: Groups) -> None:
    cell = DATA + ARRAYS + WEIGHTS
    _, parts = undisturbed(groups, 2, cell, every=3)
    other = cell.replace("batch_size=29", "batch_size=13")
    for outcome in resume(groups, 2, other, parts, "fit0-epoch1-step4"):
        assert outcome.kind == "TrainingError"
        assert "epoch 2, step 5, of an epoch of 5 batches of 29 rows; the cell's has 11 batches of 13" in outcome.error


@pytest.mark.soak
def test_checkpoints_within_epochs_leave_one_of_each_epochs_beginning(groups: Groups) -> None:
    cell = DATA + ARRAYS + WEIGHTS
    full, parts = undisturbed(groups, 2, cell, every=3)
    assert list(dict.fromkeys(one.position.label for one in assemble(parts))) == [
        "fit0-epoch0-step3",
        "fit0-epoch1-step0",
        "fit0-epoch1-step1",
        "fit0-epoch1-step4",
        "fit0-epoch2-step0",
        "fit0-epoch2-step2",
        "fit0-epoch3-step0",
        "fit0-epoch3-step3",
        "fit0-end",
    ]
    assert_equal(resume(groups, 2, cell, parts, "fit0-epoch2-step0"), full)


@pytest.mark.soak
def test_strategy_local_goes_on_from_its_settled_weights(groups: Groups) -> None:
    cell = DATA + EXECUTIONS.replace(", steps_per_execution=2", "") + WEIGHTS
    full, parts = undisturbed(groups, 2, cell, strategy="local")
    after = succeeded(resume(groups, 2, cell, parts, "fit0-epoch2-step0", "local"))
    assert after[0].values["history"]["loss"][:2] == full[0].values["history"]["loss"][:2]
    assert after[0].values["history"]["loss"][2] < full[0].values["history"]["loss"][0]
    assert_same_weights(after, after[0].values["weights"], 0.0)


@pytest.mark.soak
def test_checkpoints_that_nobody_asked_for_are_left_out_where_they_would_cost_too_much(groups: Groups) -> None:
    cell = DATA + ARRAYS.replace("Dense(16", "Dense(150_000").replace("epochs=4", "epochs=6")
    outcomes, told, taken = notices_of(groups[1], cell, checkpoints={})
    succeeded(outcomes)
    assert told == []
    assert len(taken) <= 2


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 1])
def test_what_has_no_checkpoints_says_so_when_they_were_asked_for(groups: Groups, size: int) -> None:
    own_loop = DATA + (
        """
model, optimizer = mlp(), keras.optimizers.SGD(0.1)
for _ in range(2):
    with tf.GradientTape() as tape:
        loss = from_logits(y, model(x))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""
    )
    late = DATA + (
        """
class Late(keras.Model):
    def train_step(self, data):
        if not hasattr(self, "other"):
            self.other = keras.optimizers.SGD(0.1)
        return super().train_step(data)


model = Late(*(lambda m: (m.inputs, m.outputs))(mlp()))
model.extra = keras.optimizers.SGD(0.1)
model.compile("sgd", from_logits)
model.fit(x, y, batch_size=29, epochs=2, verbose=0)
"""
    )
    for cell, expected in ((own_loop, "Checkpoints cover only fit()"), (late, "is not built before the first step")):
        outcomes, told, taken = notices_of(groups[size], cell, checkpoints={"asked": True})
        succeeded(outcomes)
        assert taken == []
        assert any(expected in text for text in told), told
