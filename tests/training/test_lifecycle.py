"""A run leaves Keras, the process and the files of other ranks as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded
from tests.training.harness import DATA, Group

SNAPSHOT = """
from keras.src.backend.tensorflow import trainer
from keras.src.losses import loss
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from tfos_magic.training.keras_seam.seams import BASE_TRAINER, TRAINER, found


def attributes():
    owners = [trainer, found(TRAINER), found(BASE_TRAINER), BaseOptimizer, LossScaleOptimizer, loss, loss.Loss,
              keras.Model, keras.Sequential, keras.layers.BatchNormalization, keras.layers.Normalization,
              keras.layers.StringLookup, keras.layers.TextVectorization, keras.metrics.Mean]
    return [(owner.__name__, name, value) for owner in owners for name, value in list(vars(owner).items())
            if callable(value) or isinstance(value, property)]
"""


@pytest.mark.parametrize("size", every(2, [2, 1]))
def test_nothing_stays_patched_and_a_model_trains_plainly_afterwards(groups, size: int) -> None:
    cell = (
        DATA
        + SNAPSHOT
        + (
            """
from tfos_magic.training.distributed_cell import RunContext, StopSignal, distributed

before = attributes()
model = mlp()
with distributed(RunContext("run", collectives, lambda message: None, StopSignal())):
    changed = [name for _, name, _ in set(attributes()) - set(before)]
    model.compile("adam", from_logits)
    model.fit(x, y, verbose=0)
left = [name for _, name, _ in set(attributes()) ^ set(before)]
functions = [model.train_function, model.test_function]
fitted = len(model.fit(x, y, verbose=0).epoch)
"""
        )
    )
    for outcome in succeeded(groups[size].run(cell, "changed", "left", "functions", "fitted", bare=True)):
        assert {"fit", "evaluate"} <= set(outcome.values["changed"])
        assert outcome.values["left"] == []
        assert outcome.values["functions"] == [None, None]
        assert outcome.values["fitted"] == 1


def test_keras_is_as_before_when_the_cell_fails(groups) -> None:
    after = "from keras.src.backend.tensorflow import trainer\nname = trainer.TFEpochIterator.__qualname__\n"
    plain = groups.plain(after, "name").values["name"]
    assert groups[1].run("raise KeyError('mine')")[0].kind == "KeyError"
    assert succeeded(groups[1].run(after, "name"))[0].values["name"] == plain


def test_callbacks_that_write_act_on_rank_0_alone(groups, tmp_path: Path) -> None:
    cell = DATA + (
        f"""
folder = {str(tmp_path)!r} + f"/{{rank}}"
model = mlp()
model.compile("adam", from_logits)
model.fit(x, y, epochs=2, verbose=0, callbacks=[
    keras.callbacks.ModelCheckpoint(folder + "/best.keras"), keras.callbacks.CSVLogger(folder + ".csv"),
    keras.callbacks.TensorBoard(folder + "/logs")])
"""
    )
    succeeded(groups[2].run(cell))
    assert (tmp_path / "0" / "best.keras").exists()
    assert (tmp_path / "0.csv").read_text().count("\n") == 3
    assert not list(tmp_path.glob("1*"))


@pytest.mark.soak
def test_a_backup_on_rank_0_moves_the_start_of_all(groups, tmp_path: Path) -> None:
    cell = DATA + (
        f"""
class Fail(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and FAILING:
            raise RuntimeError("interrupted")


model = mlp()
model.compile("adam", from_logits)
backup = keras.callbacks.BackupAndRestore({str(tmp_path)!r} + f"/{{rank}}")
epochs = []
try:
    epochs = model.fit(x, y, epochs=4, verbose=0, callbacks=[backup, Fail()]).epoch
except RuntimeError:
    pass
weights = model.get_weights()
"""
    )
    succeeded(groups[2].run("FAILING = True\n" + cell))
    outcomes = succeeded(groups[2].run("FAILING = False\n" + cell, "epochs", "weights"))
    assert [outcome.values["epochs"] for outcome in outcomes] == [[2, 3], [2, 3]]
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)


@pytest.mark.soak
def test_only_rank_0_prints_and_only_when_asked(groups) -> None:
    cell = DATA + (
        """
import contextlib
import io

printed = []
for verbose in ("auto", 0, 1, 2):
    model = mlp()
    model.compile("adam", from_logits)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        model.fit(x, y, verbose=verbose)
    printed.append(text.getvalue().count("\\n"))
"""
    )
    outcomes = succeeded(groups[2].run(cell, "printed"))
    assert outcomes[0].values["printed"] == [0, 0, 1, 1]
    assert outcomes[1].values["printed"] == [0, 0, 0, 0]


@pytest.mark.soak
def test_tf_keras_imported_in_a_run_keeps_nothing_of_it() -> None:
    """It imports its public modules when they are asked for, so they take what is patched just then."""
    pytest.importorskip("tf_keras")
    group = Group(1)
    try:
        succeeded(
            group.run(
                "import tf_keras\nassert tf_keras.losses and tf_keras.__internal__.losses\n"
                "model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])\n"
                "model.compile('sgd', 'mse')\nmodel.fit([[1.0, 2.0]] * 8, [1.0] * 8, verbose=0)"
            )
        )
        look = "import gc\nsessions = [type(o).__module__ for o in gc.get_objects() if type(o).__name__ == 'Session']"
        assert succeeded(group.run(look, "sessions", bare=True))[0].values["sessions"] == []
    finally:
        group.close()


@pytest.mark.soak
def test_many_runs_in_one_process_do_not_grow_threads_files_or_much_memory(groups) -> None:
    cell = DATA + (
        """
import gc
import os
import threading

import psutil

model = mlp()
model.compile("adam", from_logits)
model.fit(x, y, batch_size=29, verbose=0)
process = psutil.Process()
gc.collect()
threads, files, memory = process.num_threads(), process.num_fds(), process.memory_info().rss
sessions = sum(type(o).__module__ == "tfos_magic.training.rank_session" for o in gc.get_objects())
"""
    )
    names = ("threads", "files", "memory", "sessions")
    runs = [succeeded(groups[2].run(cell, *names))[1].values for _ in range(12)]
    assert runs[-1]["files"] <= runs[3]["files"] + 2
    assert runs[-1]["threads"] <= runs[3]["threads"] + 2
    assert runs[-1]["sessions"] <= 3, runs  # of twelve: this run's, and what a thread of an earlier test may still hold
    assert runs[-1]["memory"] - runs[3]["memory"] < 32e6


RECOMPILED = """
kept, model = [], mlp()
for rate in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
    model.compile(keras.optimizers.SGD(rate), from_logits)
    model.fit(x, y, batch_size=26, epochs=1, verbose=0)
    if rank == 1:  # where optimizers live on, none has the place in memory of another
        kept.append(model.optimizer)
weights = model.get_weights()
"""


@pytest.mark.soak
def test_a_model_that_is_compiled_anew_ends_alike_on_all_ranks(groups) -> None:
    cell = DATA + RECOMPILED
    expected = groups.plain(cell, "weights").values["weights"]
    assert_same_weights(succeeded(groups[2].run(cell, "weights")), expected, 1e-5)


SEEDED_BY_CALLBACKS = (
    DATA
    + """
import random


class Seeding(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.weights_before = len(self.model.weights)
        self.name = random.randrange(1000)

    def on_epoch_begin(self, epoch, logs=None):
        keras.utils.set_random_seed(100 + epoch)


class Own(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), initializer="glorot_uniform")
        self.bias = self.add_weight(shape=(3,), initializer=normal)

    def call(self, inputs):
        return inputs @ self.kernel + self.bias


def normal(shape, dtype=None):
    return tf.random.normal(shape, stddev=0.3, dtype=dtype)


seeding = Seeding()
model = keras.Sequential([keras.layers.Dense(8, "relu", kernel_initializer=normal), Own()])
model.compile("adam", from_logits)
model.fit(x, y, batch_size=29, epochs=2, verbose=0, callbacks=[seeding])
weights, before, drawn = model.get_weights(), seeding.weights_before, (seeding.name, random.random())

keras.utils.set_random_seed(3)
stepped = keras.Sequential([keras.layers.Dense(3, kernel_initializer=normal), Own()])
optimizer = keras.optimizers.SGD(0.1)

@tf.function
def step(rows, labels):
    with tf.GradientTape() as tape:
        loss = from_logits(labels, stepped(rows, training=True))
    optimizer.apply(tape.gradient(loss, stepped.trainable_variables), stepped.trainable_variables)

for rows, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(29):
    step(rows, labels)
weights += stepped.get_weights()
"""
)


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 1])
def test_a_model_that_is_not_built_draws_its_weights_when_one_process_does(groups, size: int) -> None:
    plain = groups.plain(SEEDED_BY_CALLBACKS, "weights", "before", "drawn")
    outcomes = succeeded(groups[size].run(SEEDED_BY_CALLBACKS, "weights", "before", "drawn"))
    assert_same_weights(outcomes, plain.values["weights"], 1e-5)
    assert [outcome.values["before"] for outcome in [plain, *outcomes]] == [0] * (size + 1)
    assert {outcome.values["drawn"] for outcome in [plain, *outcomes]} == {plain.values["drawn"]}


NO_EPOCH = (
    DATA
    + """
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
model.compile("adam", from_logits)
model.fit(x, y, epochs=0, verbose=0)
built = model.built
model.fit(x, y, batch_size=29, epochs=2, verbose=0)
weights = model.get_weights()
"""
)


COUNTED = (
    DATA
    + """
model = keras.Sequential([keras.layers.Dense(3)])
model.compile("sgd", from_logits)
batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(20)
history = model.fit(batches, steps_per_epoch=STEPS, epochs=np.int64(2), verbose=0).history
weights = model.get_weights()
"""
)


@pytest.mark.soak
def test_epochs_and_steps_may_be_numbers_of_numpy(groups) -> None:
    counted = COUNTED.replace("STEPS", "np.sum([40, 60]) // 20")
    plain = groups.plain(counted, "weights", "history")
    outcomes = succeeded(groups[2].run(counted, "weights", "history"))
    assert_same_weights(outcomes, plain.values["weights"], 1e-5)


def test_a_number_of_steps_that_is_none_is_keras_error(groups) -> None:
    for outcome in groups[2].run(COUNTED.replace("STEPS", "len(x) / 20")):
        assert outcome.kind == "TypeError"
        assert "cannot be interpreted as an integer" in outcome.error


@pytest.mark.soak
def test_a_fit_of_no_epochs_builds_nothing(groups) -> None:
    plain = groups.plain(NO_EPOCH, "weights", "built")
    outcomes = succeeded(groups[2].run(NO_EPOCH, "weights", "built", checkpoints={}))
    assert_same_weights(outcomes, plain.values["weights"], 1e-5)
    assert [outcome.values["built"] for outcome in [plain, *outcomes]] == [False] * 3
