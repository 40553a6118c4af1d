"""What travels in 16 bits and what in buckets: the bound of the error, the bytes, and that training goes on as well."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.conftest import assert_same_weights, succeeded
from tests.training.harness import DATA

# What the docstring of SyncStrategy promises: the error of a mean, in parts of its largest term, and what is lost.
BOUNDS = {"float16": (2.0**-10, 6e-8), "bfloat16": (2.0**-7, 0.0)}
COMBINE = """
import numpy as np
import tensorflow as tf
from tfos_magic.training.distributed_cell import RunContext, StopSignal
from tfos_magic.training.step import Step
from tfos_magic.training.strategies.sync import SyncStrategy
from tfos_magic.transport.messages import StrategyOptions

random = np.random.default_rng(rank)
scales = 10.0 ** random.uniform(-6, 3, 100_003)
own = {"float32": (random.normal(size=100_003) * scales).astype("float32"), "float64": random.normal(size=997)}
rows = [3.0, 5.0][rank]
context = RunContext("run", collectives, print, StopSignal(), options=StrategyOptions(compression=compression))
strategy, vote_sum = SyncStrategy(context), tf.Variable([0.0, 0.0, 0.0])


@tf.function(autograph=False)
def combine(*gradients):
    return strategy.combine(Step(tf.constant(rows), tf.zeros([2]), vote_sum, collectives), gradients)


before = collectives.sent
means = dict(zip(own, (mean.numpy() for mean in combine(*map(tf.constant, own.values())))))
sent = collectives.sent - before
"""
FIT = (
    DATA
    + """
calls, mean = [], collectives.mean
collectives.mean = lambda *arguments: calls.append(1) or mean(*arguments)
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(100, "relu"), keras.layers.Dense(3)])
model.compile(keras.optimizers.Adam(0.01), from_logits)
history = model.fit(x, y, batch_size=29, epochs=8, verbose=0).history
weights, buckets = model.get_weights(), len(calls)
collectives.mean = mean
"""
)
PLAIN = "class collectives: mean = None\n"


@pytest.mark.parametrize("compression", BOUNDS)
def test_compressed_means_have_the_same_bits_everywhere_and_keep_within_their_bound(groups, compression: str) -> None:
    runs = {
        kind: succeeded(groups[2].run(COMBINE, "own", "means", "sent", "rows", bare=True, inputs={"compression": kind}))
        for kind in ("none", compression)
    }
    outcomes = runs[compression]
    owns, rows = [o.values["own"]["float32"].astype("float64") for o in outcomes], [3.0, 5.0]
    exact = (owns[0] * rows[0] + owns[1] * rows[1]) / sum(rows)
    relative, lost = BOUNDS[compression]
    error = np.abs(outcomes[0].values["means"]["float32"] - exact)
    assert (error <= relative * np.abs(owns).max(0) + lost).all()
    assert error.max() > 1e-3 * relative, "nothing was rounded, so nothing was compressed"
    for dtype in ("float32", "float64"):
        means = [outcome.values["means"][dtype] for outcome in outcomes]
        assert means[0].dtype == dtype
        assert np.array_equal(means[0], means[1])
    assert np.array_equal(outcomes[0].values["means"]["float64"], runs["none"][0].values["means"]["float64"])
    assert outcomes[0].values["sent"] == pytest.approx(runs["none"][0].values["sent"] / 2, rel=0.05)


@pytest.mark.soak
@pytest.mark.parametrize("compression", BOUNDS)
def test_training_with_compression_converges_as_without(groups, compression: str) -> None:
    plain = groups.plain(PLAIN + FIT, "weights", "history").values
    outcomes = succeeded(groups[2].run(FIT, "weights", "history", options={"compression": compression}))
    assert_same_weights(outcomes, plain["weights"], 0.1)
    losses = outcomes[0].values["history"]["loss"]
    assert losses[-1] < losses[0] / 2
    assert losses[-1] == pytest.approx(plain["history"]["loss"][-1], rel=0.05)


@pytest.mark.soak
def test_buckets_of_any_size_give_the_weights_of_one_process(groups) -> None:
    cell = FIT.replace("epochs=8", "epochs=2")
    plain = groups.plain(PLAIN + cell, "weights").values["weights"]
    buckets = []
    for options in ({}, {"bucket_mb": 0.001}):
        outcomes = succeeded(groups[2].run(cell, "weights", "buckets", options=options))
        assert_same_weights(outcomes, plain, 1e-5)
        buckets.append(outcomes[0].values["buckets"])
    assert buckets[1] == 2 * buckets[0], "the small ones are not two where the large one is one"
