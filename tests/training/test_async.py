"""Strategy ``async``: the optimizer on parameter servers, no rank waiting for another but by the staleness bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import Groups, assert_same_weights, succeeded
from tests.training.harness import DATA, Group, Outcome

Run = Callable[..., list[Outcome]]


@pytest.fixture(scope="module")
def served() -> Iterator[Group]:
    """Two workers and two parameter servers."""
    group = Group(2, servers=2)
    yield group
    group.close()


@pytest.fixture
def run(served: Group) -> Run:
    def run(cell: str, *names: str, **options: Any) -> list[Outcome]:
        return succeeded(served.run(cell, *names, strategy="async", options=options))

    return run


# Of a batch of one row the second rank has it and the first has none, so the servers take the steps of one process.
ONE_BY_ONE = DATA + (
    """
inputs = keras.Input((12,))
hidden = keras.layers.Dense(8, "relu", kernel_regularizer="l2", kernel_constraint="max_norm")(inputs)
model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dropout(0.0)(hidden)))
model.compile({optimizer}, from_logits, metrics=["accuracy"])
callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)]
model.fit(x[:24], y[:24], batch_size=1, epochs=2, verbose=0, callbacks={callbacks})
history = model.fit(x[:24], y[:24], batch_size=1, epochs=1, verbose=0).history
weights = model.get_weights()
state = [np.array(v) for v in model.optimizer.variables]
"""
)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("optimizer", "callbacks"),
    [
        ("keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)", "callbacks"),
        ("keras.optimizers.Adam(0.01, clipnorm=0.5)", "callbacks"),
        ("keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.3)", "callbacks"),
        ("keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.5))", "[]"),
        ("keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.7)", "[]"),
        ("keras.optimizers.Adagrad(0.05, gradient_accumulation_steps=4)", "callbacks"),
        ("keras.optimizers.Nadam(0.01)", "callbacks"),
    ],
    ids=lambda value: value.split("(")[0].rpartition(".")[2],
)
def test_steps_on_servers_are_the_optimizers_own(groups: Groups, run: Run, optimizer: str, callbacks: str) -> None:
    cell = ONE_BY_ONE.format(optimizer=optimizer, callbacks=callbacks)
    expected = groups.plain(cell, "weights", "history", "state").values
    for outcome in run(cell, "weights", "history", "state"):
        for name in ("weights", "state"):
            for mine, plain in zip(outcome.values[name], expected[name], strict=True):
                np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(outcome.values["history"]["loss"], expected["history"]["loss"], atol=1e-5)


CONVERGE = DATA + (
    """
model = mlp()
model.compile(keras.optimizers.Adam(0.01), from_logits, metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=30, verbose=0, validation_data=(val_x, val_y)).history
weights = model.get_weights()
"""
)


@pytest.mark.soak
def test_accuracy_is_that_of_sync(groups: Groups, run: Run) -> None:
    expected = groups.plain(CONVERGE, "history").values["history"]
    first, second = run(CONVERGE, "weights", "history")
    assert first.values["history"] == second.values["history"]
    assert_same_weights([first, second], first.values["weights"], 0.0)
    assert expected["accuracy"][-1] > 0.9
    assert first.values["history"]["accuracy"][-1] == pytest.approx(expected["accuracy"][-1], abs=0.02)


SLOW = DATA + (
    """
import time

model = mlp()
model.compile("sgd", from_logits)
marks = []


class Mark(keras.callbacks.Callback):
    def on_train_batch_end(self, step, logs=None):
        marks.append(time.monotonic())
        if rank == 1:
            time.sleep(0.03)  # what is tested is a slow worker


model.fit(x[:120], y[:120], batch_size=4, epochs=1, verbose=0, callbacks=[Mark()])
"""
)


@pytest.mark.soak
@pytest.mark.parametrize("bound", every(2, [3, 0]))
def test_no_worker_is_further_ahead_than_the_staleness_bound(run: Run, bound: int) -> None:
    fast, slow = (outcome.values["marks"] for outcome in run(SLOW, "marks", max_staleness=bound))
    # When a worker ends step n it may be ahead of the slower one by the bound; that one's own step may be on its way.
    leads = [n + 1 - sum(mark <= moment for mark in slow) for n, moment in enumerate(fast)]
    assert len(fast) == len(slow) == 30
    assert max(leads) <= bound + 1
    if bound:
        assert max(leads) >= bound


LONG = DATA + (
    """
import time

model = mlp()
model.compile("sgd", from_logits, metrics=["accuracy"])
begun = []


class Pace(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        begun.append(epoch)

    def on_train_batch_end(self, step, logs=None):
        time.sleep({pause})  # so that a run lasts long enough to be disturbed


raised = ""
try:
    history = model.fit(x, y, batch_size=40, epochs={epochs}, verbose=0, callbacks=[Pace()],
                        validation_data=(val_x, val_y)).history
    trained = len(history["loss"])
    score = model.evaluate(val_x, val_y, verbose=0)
except Exception as error:
    raised, trained, score = f"{type(error).__name__}: {error}", 0, 0
weights = model.get_weights()
"""
)


@pytest.mark.soak
def test_a_request_to_one_rank_stops_all(served: Group) -> None:
    asked: list[float] = []

    def ask(rank: int, message: object) -> None:
        if not asked and getattr(message, "rows", 0) > 100:
            asked.append(time.monotonic())
            served.stop(1)

    cell = LONG.replace("{pause}", "0").replace("{epochs}", "10**6").replace("except Exception", "except ValueError")
    outcomes = served.run(cell, on_message=ask, strategy="async")
    assert time.monotonic() - asked[0] < 10.0
    assert {outcome.kind for outcome in outcomes} == {"RunStopped"}


@pytest.mark.soak
def test_the_others_go_on_without_a_killed_worker_and_with_one_that_comes_in_its_place() -> None:
    group = Group(2, servers=1)
    try:
        done: list[str] = []

        def disturb(rank: int, message: object) -> None:
            epoch = getattr(message, "epoch", 0) if rank == 0 else 0
            if epoch >= 2 and not done:
                done.append("killed")
                group.kill(1)
            if epoch >= 5 and done == ["killed"]:
                done.append("respawned")
                group.respawn(1)

        # The run goes on until the newcomer, whose first epoch is not 0, has taken part in three epochs.
        leave = (
            "if begun[0] and len(begun) == 3:\n            self.model.stop_training = True\n        time.sleep({pause})"
        )
        cell = LONG.replace("time.sleep({pause})", leave).replace("{pause}", "0.02").replace("{epochs}", "10**6")
        names = ("raised", "begun", "weights", "score")
        first, newcomer = succeeded(group.run(cell, *names, on_message=disturb, strategy="async"))
        assert done == ["killed", "respawned"]
        assert [first.values["raised"], newcomer.values["raised"]] == ["", ""]
        epochs = first.values["begun"]
        assert epochs == list(range(len(epochs)))
        assert newcomer.values["begun"] == epochs[-3:]
        assert newcomer.values["begun"][0] >= 5
        assert first.values["score"] == newcomer.values["score"]
        assert_same_weights([first, newcomer], first.values["weights"], 0.0)
    finally:
        group.close()


def test_without_servers_it_is_refused_with_what_to_do(groups: Groups) -> None:
    outcomes = groups[2].run("pass", strategy="async")
    assert {outcome.kind for outcome in outcomes} == {"TrainingError"}
    assert "--ps 1" in outcomes[0].error


def test_a_layer_is_not_adapted_to_shares_that_are_not_merged(served: Group) -> None:
    body = "keras.layers.Normalization().adapt(mark_sharded(tf.data.Dataset.from_tensor_slices(x).batch(9)))"
    outcomes = served.run(
        f"{DATA}from tfos_magic.training.inputs.marks import mark_sharded\n{body}", strategy="async", options={}
    )
    assert {outcome.kind for outcome in outcomes} == {"TrainingError"}
    assert "statistics in Spark" in outcomes[0].error


def test_a_model_that_cannot_be_built_before_its_first_step_is_refused(served: Group) -> None:
    cell = DATA + (
        """
class Late(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(3)

    def call(self, inputs):
        return self.out(inputs / inputs.numpy().max())


model = Late()
model.compile("sgd", from_logits, run_eagerly=True)
model.fit(x, y, batch_size=40, verbose=0)
"""
    )
    outcomes = served.run(cell, strategy="async")
    assert {outcome.kind for outcome in outcomes} == {"TrainingError"}
    assert "Input layer" in outcomes[0].error


def test_sparse_gradients_and_moving_averages_come_home(groups: Groups, run: Run) -> None:
    cell = DATA + (
        """
words = (np.abs(x[:, :4]) * 10).astype("int64") % 40
model = keras.Sequential([keras.Input((4,), dtype="int64"), keras.layers.Embedding(40, 6), keras.layers.Flatten(),
                          keras.layers.BatchNormalization(), keras.layers.Dense(3)])
model.compile("adam", from_logits)
model.fit(words, y, batch_size=33, epochs=3, verbose=0)
weights = model.get_weights()
"""
    )
    outcomes = run(cell, "weights")
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)


def test_an_optimizer_for_each_variable_is_refused_with_the_remedy(served: Group) -> None:
    cell = DATA + (
        "first, other = keras.optimizers.Adam(), keras.optimizers.SGD()\n"
        "model = mlp()\n"
        "both = keras.optimizers.MultiOptimizer(lambda v: first if 'kernel' in v.path else other)\n"
        "model.compile(both, from_logits)\n"
        "model.fit(x, y, verbose=0)\n"
    )
    for outcome in served.run(cell, strategy="async", options={}):
        assert outcome.kind == "TrainingError", outcome.error
        assert "MultiOptimizer picks an optimizer for each variable" in outcome.error
        assert "--strategy sync" in outcome.error
