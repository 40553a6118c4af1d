"""Strategy ``local``: steps of each rank's own, then an average of weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.soak import every, in_turn
from tests.training.conftest import Groups, assert_same_weights, succeeded
from tests.training.harness import DATA, Outcome

# 131 rows in batches of 65: the last batch has one row, so some ranks have none.
FIT = """
model.compile({optimizer}, from_logits, metrics=["accuracy"])
history = model.fit(x, y, batch_size=65, epochs=4, verbose=0, validation_data=(val_x, val_y)).history
weights = model.get_weights()
"""
MLP = DATA + "model = mlp()\n" + FIT
NORMALIZED = (
    DATA
    + """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), keras.layers.BatchNormalization(momentum=0.5),
                          keras.layers.Dense(3)])
"""
    + FIT
)
SGD = "keras.optimizers.SGD(0.1)"
Run = Callable[..., list[Outcome]]


@pytest.fixture
def local(groups: Groups) -> Run:
    """Run a cell with strategy ``local`` on a number of ranks; all must succeed."""

    def run(size: int, cell: str, *names: str, **options: Any) -> list[Outcome]:
        return succeeded(groups[size].run(cell, *names, strategy="local", options=options))

    return run


@pytest.mark.soak
@pytest.mark.parametrize("size", [3, 1, 2])
def test_an_average_after_every_step_of_sgd_is_sync(groups: Groups, local: Run, size: int) -> None:
    cell = MLP.format(optimizer=SGD)
    expected = groups.plain(cell, "weights", "history").values
    outcomes = local(size, cell, "weights", "history", sync_every=1)
    assert_same_weights(outcomes, expected["weights"], 1e-5)
    # A rank's rows of a step are seen by the weights before it, as in one process.
    np.testing.assert_allclose(outcomes[0].values["history"]["val_loss"], expected["history"]["val_loss"], atol=2e-5)
    np.testing.assert_allclose(outcomes[0].values["history"]["loss"], expected["history"]["loss"], atol=2e-5)


@pytest.mark.parametrize(
    ("options", "cell"),
    in_turn(
        [
            # The last step of an epoch, of which a rank has no rows, ends with an average.
            {"sync_every": 3, "compression": "bfloat16"},
            {"sync_every": 4, "fragments": 2, "overlap": 1, "compression": "int8", "outer_momentum": 0.5},
            {},
            {"sync_every": 5},
            {"sync_every": 5, "average_state": True},
            {"sync_every": 4, "fragments": 4, "average_state": True},
            {"sync_every": 4, "overlap": 2},
        ],
        [NORMALIZED, MLP],
        14,
    ),
)
def test_weights_are_equal_on_all_ranks_at_the_end_and_in_validation(
    local: Run, cell: str, options: dict[str, Any]
) -> None:
    seen = """
seen = []
class See(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        seen.append(self.model.get_weights())
"""
    cell = cell.format(optimizer='"adam"').replace("model.compile", seen + "model.compile")
    cell = cell.replace("verbose=0", "verbose=0, callbacks=[See()]")
    first, second = local(2, cell, "weights", "history", "seen", **options)
    assert len(first.values["seen"]) == 4
    for mine, other in zip(first.values["seen"], second.values["seen"], strict=True):
        assert _distance(mine, other) == 0.0
    assert_same_weights([first, second], first.values["weights"], 0.0)
    assert first.values["history"] == second.values["history"]
    assert first.values["history"]["accuracy"][-1] > first.values["history"]["accuracy"][0]


@pytest.mark.soak
def test_between_two_averages_ranks_go_their_own_way(local: Run) -> None:
    cell = DATA + (
        """
model = mlp()
model.compile("sgd", from_logits)
kept = []
class Keep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        kept.append(self.model.get_weights())
model.fit(x[:120], y[:120], batch_size=20, epochs=1, verbose=0, callbacks=[Keep()])
"""
    )
    first, second = local(2, cell, "kept", sync_every=3)
    apart = [_distance(a, b) > 0.0 for a, b in zip(first.values["kept"], second.values["kept"], strict=True)]
    assert apart == [True, True, False, True, True, False]


# Two ranks, one weight, gradients that are known: the loss of a row is its value times the weight.
LINE = """
import keras
import numpy as np
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
model.compile({optimizer}, lambda y, p: p[:, 0])
x = np.array([[1.0], [3.0]], "float32")
model.fit(x, np.zeros(2), batch_size=2, epochs={epochs}, shuffle=False, verbose=0)
weight = float(model.get_weights()[0][0, 0])
state = [np.array(v) for v in model.optimizer.variables]
"""


@pytest.mark.soak
def test_outer_momentum_is_nesterovs_on_the_averaged_difference(local: Run) -> None:
    cell = LINE.format(optimizer="keras.optimizers.SGD(0.1)", epochs=3)
    outcomes = local(2, cell, "weight", sync_every=1, outer_momentum=0.5)
    weight, velocity = 1.0, 0.0
    for _ in range(3):
        gradient = 0.1 * 2.0  # ranks go 0.1 and 0.3 down, 0.2 in the mean
        velocity = 0.5 * velocity + gradient
        weight -= 0.7 * (gradient + 0.5 * velocity)
    assert [outcome.values["weight"] for outcome in outcomes] == pytest.approx([weight, weight], abs=1e-6)


@pytest.mark.soak
def test_outer_learning_rate_alone_scales_the_average(local: Run) -> None:
    cell = LINE.format(optimizer="keras.optimizers.SGD(0.1)", epochs=2)
    outcomes = local(2, cell, "weight", sync_every=1, outer_learning_rate=0.5)
    assert [outcome.values["weight"] for outcome in outcomes] == pytest.approx([1 - 2 * 0.5 * 0.2] * 2, abs=1e-6)


@pytest.mark.soak
def test_optimizer_state_is_each_ranks_own_unless_it_is_averaged(local: Run) -> None:
    cell = LINE.format(optimizer="keras.optimizers.SGD(0.1, momentum=0.9)", epochs=1)
    own = [outcome.values["state"][-1].item() for outcome in local(2, cell, "state", sync_every=1)]
    assert own == pytest.approx([-0.1, -0.3])
    both = [o.values["state"][-1].item() for o in local(2, cell, "state", sync_every=1, average_state=True)]
    assert both == pytest.approx([-0.2, -0.2])


@pytest.mark.soak
def test_ranks_count_by_their_rows(local: Run) -> None:
    """Of three rows the second rank has two."""
    cell = LINE.format(optimizer="keras.optimizers.SGD(0.1)", epochs=1).replace("[3.0]]", "[3.0], [3.0]]")
    cell = cell.replace("zeros(2)", "zeros(3)").replace("batch_size=2", "batch_size=3")
    outcomes = local(2, cell, "weight", sync_every=4)
    assert [outcome.values["weight"] for outcome in outcomes] == pytest.approx([1 - 0.1 * 7 / 3] * 2, abs=1e-6)


@pytest.mark.soak
@pytest.mark.parametrize("steps", [3, 10**6])
def test_a_stop_on_the_way_to_an_average_ends_all_ranks(groups: Groups, steps: int) -> None:
    cell = DATA + (
        """
model = mlp()
model.compile("adam", from_logits)
raised = ""
try:
    model.fit(x[:130], y[:130], batch_size=10, epochs=10**6, verbose=0)
except Exception as error:
    raised = type(error).__name__
iterations = int(model.optimizer.iterations.numpy())
"""
    )
    asked: list[float] = []

    def ask(rank: int, message: object) -> None:
        if not asked and getattr(message, "rows", 0) > 100:
            asked.append(time.monotonic())
            groups[2].stop(1)

    outcomes = succeeded(
        groups[2].run(cell, "raised", "iterations", on_message=ask, strategy="local", options={"sync_every": steps})
    )
    assert time.monotonic() - asked[0] < 10.0
    assert {outcome.values["raised"] for outcome in outcomes} == {"RunStopped"}
    assert len({outcome.values["iterations"] for outcome in outcomes}) == 1


# Two ranks, two weights of 300 and 40 values, each of which has its own gradient in each row; seven steps an epoch.
PLANES = """
import keras
import numpy as np
class Planes(keras.Model):
    def __init__(self):
        super().__init__()
        self.large = self.add_weight(shape=(300,), initializer="zeros")
        self.small = self.add_weight(shape=(40,), initializer="zeros")
    def call(self, rows):
        return keras.ops.sum(rows[:, :300] * self.large, -1) + keras.ops.sum(rows[:, 300:] * self.small, -1)
model = Planes()
model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)
x = np.random.default_rng(5).normal(size=(14, 340)).astype("float32")
model.fit(x, np.zeros(14), batch_size=2, epochs={epochs}, shuffle=False, verbose=0)
weights = np.concatenate(model.get_weights())
"""


def taken_apart(x: np.ndarray, epochs: int, every: int, parts: list[slice], overlap: int) -> np.ndarray:
    """What two ranks make of ``PLANES``: a row each in each step, averages of ``parts`` in turn, which are taken up
    ``overlap`` steps later."""
    weights, anchor = np.zeros((2, x.shape[1])), np.zeros(x.shape[1])
    begun: tuple[slice, np.ndarray, np.ndarray] | None = None

    def take() -> None:
        nonlocal begun
        if begun is not None:
            part, mean, before = begun
            weights[:, part] += mean - before
            anchor[part], begun = mean, None

    for _ in range(epochs):
        for step in range(1, 8):
            weights -= x[2 * step - 2 : 2 * step]
            if step % every == 0:
                part = parts[(step // every - 1) % len(parts)]
                begun = part, weights[:, part].mean(0), weights[:, part].copy()
            if step % every == overlap:
                take()
        take()
        weights[:] = weights.mean(0)
    return weights[0]


@pytest.mark.parametrize(
    ("every", "fragments", "overlap"), every(6, [(4, 2, 1), (2, 1, 0), (2, 1, 1), (3, 1, 2), (4, 2, 0), (6, 2, 2)])
)
def test_fragments_take_turns_and_steps_taken_meanwhile_are_kept(
    local: Run, every: int, fragments: int, overlap: int
) -> None:
    options = {"sync_every": every, "fragments": fragments, "overlap": overlap}
    outcomes = local(2, PLANES.format(epochs=2), "weights", "x", **options)
    parts = [slice(0, 300), slice(300, 340)] if fragments == 2 else [slice(0, 340)]
    right = taken_apart(outcomes[0].values["x"], 2, every // fragments, parts, overlap)
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.values["weights"], right, atol=1e-5)


@pytest.mark.soak
def test_two_optimizers_have_averages_under_way_at_once(local: Run) -> None:
    cell = (
        PLANES.replace("model = Planes()", "")
        .replace("model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)", "")
        .replace("x = np.random", TWO_OPTIMIZERS + "x = np.random")
        .format(epochs=3)
    )
    alone = local(1, cell, "weights", sync_every=3)[0].values["weights"]
    outcomes = local(2, cell, "weights", sync_every=3, overlap=2)
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)
    np.testing.assert_allclose(outcomes[0].values["weights"], alone, rtol=0, atol=1e-4)


# Gradients that are the same on all ranks, so that weights are right where each optimizer takes up its own average.
TWO_OPTIMIZERS = """
import tensorflow as tf

class Two(Planes):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.optimizers.SGD(1.0), keras.optimizers.SGD(1.0)
        self.first.build([self.large])
        self.second.build([self.small])
    def train_step(self, data):
        self.first.apply_gradients([(tf.ones((300,)), self.large)])
        self.second.apply_gradients([(tf.fill((40,), 7.0), self.small)])
        return {{"loss": tf.constant(0.0)}}

model = Two()
model.compile()
"""


@pytest.mark.soak
def test_the_error_of_int8_does_not_grow(local: Run) -> None:
    errors = []
    for epochs in (1, 30):
        cell = PLANES.format(epochs=epochs)
        right = local(2, cell, "weights", sync_every=1)[0].values["weights"]
        outcomes = local(2, cell, "weights", sync_every=1, compression="int8")
        assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)
        errors.append(float(np.abs(outcomes[0].values["weights"] - right).max()))
    assert 0.0 < errors[0] < 4.0 / 63  # a step: of the largest change that a row makes, in the 63 that a rank has
    assert errors[1] < 2 * errors[0]


@pytest.mark.soak
def test_int8_sends_a_quarter(local: Run) -> None:
    fit = DATA + (
        """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(500, "relu"), keras.layers.Dense(3)])
model.compile("adam", from_logits)
sent = collectives.sent
model.fit(x, y, batch_size=65, epochs=30, verbose=0)
sent = collectives.sent - sent
"""
    )
    ratios = {}
    for kind in ("none", "bfloat16", "int8"):
        ratios[kind] = local(2, fit, "sent", compression=kind, sync_every=1)[0].values["sent"]
    assert ratios["int8"] < 0.3 * ratios["none"]
    assert ratios["bfloat16"] < 0.55 * ratios["none"]


@pytest.mark.soak
def test_what_is_not_finite_stays_so_in_int8(local: Run) -> None:
    cell = PLANES.format(epochs=1).replace("model.fit", "x[3, 7] = np.nan\nmodel.fit")
    for outcome in local(2, cell, "weights", sync_every=4, compression="int8"):
        assert np.isnan(outcome.values["weights"][7])


@pytest.mark.parametrize(
    "options",
    [
        {"outer_momentum": 1.0},
        {"outer_learning_rate": 0.0},
        {"sync_every": -1},
        {"sync_every": 16, "fragments": 3},
        {"sync_every": 16, "fragments": 4, "overlap": 4},
    ],
)
def test_options_that_mean_nothing_are_refused(groups: Groups, options: dict[str, Any]) -> None:
    outcomes = groups[2].run("pass", strategy="local", options=options)
    assert {outcome.kind for outcome in outcomes} == {"TrainingError"}


def _distance(mine: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(mine, other, strict=True))


TWO_MODELS = """
def trained(epochs):
    keras.utils.set_random_seed(3)
    normalised = [keras.layers.Dense(8), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(3)]
    made = keras.Sequential([keras.Input((12,)), *normalised])
    made.compile(keras.optimizers.SGD(0.05), from_logits)
    made.fit(x, y, batch_size=29, epochs=epochs, verbose=0, shuffle=False)
    return made

models = [trained(2), trained(1), trained(2)]
first, last = models[0].get_weights(), models[2].get_weights()
"""


@pytest.mark.soak
def test_every_model_of_a_cell_has_its_statistics_averaged(groups: Groups) -> None:
    outcomes = succeeded(groups[2].run(DATA + TWO_MODELS, "first", "last", strategy="local", options={"sync_every": 1}))
    for outcome in outcomes:
        for one, other in zip(outcome.values["first"], outcome.values["last"], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


UNFROZEN = """
class Counts(keras.layers.Layer):
    def build(self, shape):
        self.kept = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.kept.assign(tf.reduce_mean(inputs))
        return inputs


base = keras.layers.Dense(8)
model = keras.Sequential([keras.Input((12,)), Counts(), base, keras.layers.Dense(3)])
for trainable in (False, True):
    base.trainable = trainable
    model.compile(keras.optimizers.SGD(0.05), from_logits)
    model.fit(x[:26], y[:26], batch_size=26, epochs=2, verbose=0, shuffle=False)
kept, expected = float(model.layers[0].kept), float(x[:26].mean())
"""


@pytest.mark.soak
def test_statistics_are_averaged_after_layers_were_unfrozen(groups: Groups) -> None:
    for outcome in succeeded(groups[2].run(DATA + UNFROZEN, "kept", "expected", strategy="local")):
        assert outcome.values["kept"] == pytest.approx(outcome.values["expected"], abs=1e-5)
