"""Strategy ``async``: the optimizer on parameter servers, no rank waiting for another but by the staleness bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import Groups, succeeded
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


def test_accuracy_is_that_of_sync(groups: Groups, run: Run) -> None:
    expected = groups.plain(CONVERGE, "history").values["history"]
    first, second = run(CONVERGE, "weights", "history")
    assert first.values["history"] == second.values["history"]
    for mine, other in zip(first.values["weights"], second.values["weights"], strict=True):
        assert np.array_equal(mine, other)
    assert expected["accuracy"][-1] > 0.9
    assert first.values["history"]["accuracy"][-1] == pytest.approx(expected["accuracy"][-1], abs=0.02)
