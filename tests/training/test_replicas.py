"""Loops by ``strategy.run`` in a program that each worker runs, as ``tf.distribute`` documents them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.soak import every, in_turn
from tests.training.conftest import Groups, assert_same_weights, succeeded
from tests.training.harness import DATA, Outcome

AS_WRITTEN = """
from contextlib import ExitStack
from tfos_magic.training import ranks
from tfos_magic.training.context import Calls, RunContext, StopSignal
from tfos_magic.training.keras_seam.as_written.distribute_strategies import rows_are_own, strategies_taken
entered = ExitStack()
context = RunContext("run", collectives, lambda message: None, StopSignal(), seed=7, calls=Calls(rank=True))
entered.enter_context(ranks.current(context))
entered.enter_context(strategies_taken())
rows_are_own(entered)
with entered:
"""

LOOP = (
    DATA
    + """
BATCH = 26
strategy = STRATEGY
with strategy.scope():
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(16, "relu"), MIDDLE keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.01)
    of_rows = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    accuracy, counted = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Sum()
batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH))


def step(batch):
    features, labels = batch
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        loss = tf.nn.compute_average_loss(of_rows(labels, logits), global_batch_size=BATCH)
        loss += tf.nn.scale_regularization_loss(0.01 * tf.nn.l2_loss(model.trainable_variables[0]))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy.update_state(labels, logits)
    counted.update_state(tf.ones_like(labels))
    return loss


@tf.function
def train(batch):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(batch,)), axis=None)


history = []
for epoch in range(2):
    loss = sum(float(train(batch)) for batch in batches)
    history.append([loss, float(accuracy.result()), float(counted.result())])
    accuracy.reset_state()
    counted.reset_state()
weights = model.get_weights()
"""
)
TOGETHER = "tf.distribute.MultiWorkerMirroredStrategy()"


def as_written(program: str) -> str:
    return AS_WRITTEN + "".join(f"    {line}\n" for line in program.replace("STRATEGY", TOGETHER).splitlines())


def run(groups: Groups, size: int, program: str, *names: str) -> list[Outcome]:
    return succeeded(groups[size].run(as_written(program), *names, bare=True))


@pytest.mark.parametrize(("eager", "size"), in_turn([False, True], [2, 3, 1]))
def test_a_loop_gives_the_weights_the_losses_and_the_metrics_of_one_process(
    groups: Groups, size: int, eager: bool
) -> None:
    program = LOOP.replace("MIDDLE", "")
    program = program.replace("@tf.function\n", "") if eager else program
    plain = groups.plain(program.replace("STRATEGY", "tf.distribute.get_strategy()"), "weights", "history")
    outcomes = run(groups, size, program, "weights", "history")
    assert_same_weights(outcomes, plain.values["weights"], 1e-5)
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.values["history"], plain.values["history"], rtol=1e-5)


CLIPPED = (
    DATA
    + """
BATCH = 26
strategy = STRATEGY
words = tf.cast(tf.math.floormod(x[:, :4] * 10, 5), tf.int32)
with strategy.scope():
    text = keras.Input((4,), dtype="int32")
    made = keras.layers.Embedding(5, 3)(text) + keras.layers.Embedding(4, 3)(keras.ops.arange(4))
    model = keras.Model(text, keras.layers.Dense(3)(keras.layers.Flatten()(made)))
    optimizer = keras.optimizers.OPTIMIZER
    of_rows = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((words, y)).batch(BATCH))


def step(features, labels):
    with tf.GradientTape() as tape:
        losses = of_rows(labels, model(features, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def train(batch):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=batch), axis=None)


history = [float(train(batch)) for _ in range(2) for batch in batches]
weights = model.get_weights()
"""
)


@pytest.mark.soak
@pytest.mark.parametrize(
    "optimizer",
    [
        "SGD(0.5, clipnorm=0.02)",
        "Adam(0.01, gradient_accumulation_steps=2)",
        "AdamW(0.01, global_clipnorm=0.1)",
        "Adam(0.01, use_ema=True, ema_overwrite_frequency=3)",
        "Adam(0.01, clipvalue=0.002)",
        "Adam(0.01, use_ema=True)",
    ],
)
def test_an_optimizer_clips_and_accumulates_gradients_of_the_whole_batch(groups: Groups, optimizer: str) -> None:
    program = CLIPPED.replace("OPTIMIZER", optimizer)
    plain = groups.plain(program.replace("STRATEGY", "tf.distribute.get_strategy()"), "weights", "history")
    outcomes = run(groups, 2, program, "weights", "history")
    assert_same_weights(outcomes, plain.values["weights"], 1e-5)
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.values["history"], plain.values["history"], rtol=1e-5)


KERAS2 = """
from tfos_magic.training.keras_seam.as_written.keras2 import keras2_understood
keras2_understood(entered, print)
"""
BY_HAND = """
    gradients = tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, model.trainable_variables))
    gradients, _ = tf.clip_by_global_norm(gradients, 0.05)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables)ADDED_UP)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    "added_up", every(2, ["experimental_aggregate_gradients=False", "skip_gradients_aggregation=True, name='step'"])
)
def test_gradients_that_a_replica_adds_up_by_itself_are_not_added_up_again(groups: Groups, added_up: str) -> None:
    lines = LOOP.replace("MIDDLE", "").splitlines()
    first = next(number for number, line in enumerate(lines) if "gradients = tape" in line)
    lines[first : first + 2] = BY_HAND.strip("\n").splitlines()
    program = "\n".join(lines) + "\n"
    plain = program.replace("STRATEGY", "tf.distribute.get_strategy()").replace("ADDED_UP", "")
    expected = groups.plain(plain, "weights")
    told = KERAS2 + program.replace("ADDED_UP", f", {added_up}")
    outcomes = run(groups, 2, told, "weights")
    assert_same_weights(outcomes, expected.values["weights"], 1e-5)


AGGREGATED = """
import tensorflow as tf
from tensorflow import VariableAggregation as Aggregation

strategy = STRATEGY
on_read = tf.VariableSynchronization.ON_READ
with strategy.scope():
    read = tf.Variable(1.0, aggregation=Aggregation.SUM, synchronization=on_read)
    rows = tf.Variable(0, dtype=tf.int64, aggregation=Aggregation.SUM, synchronization=on_read)
    written = tf.Variable(0.0, aggregation=Aggregation.SUM)
    whole = tf.Variable(0, dtype=tf.int64, aggregation=Aggregation.SUM)
    replaced = tf.Variable([0.0], aggregation=Aggregation.SUM)
    mean = tf.Variable(0.0, aggregation=Aggregation.MEAN)
    first = tf.Variable(0, dtype=tf.int64, aggregation=Aggregation.ONLY_FIRST_REPLICA)
    table = tf.Variable([0.0, 0.0], aggregation=Aggregation.MEAN)
    bare = tf.Variable(0.0)


def step(number):
    mine = tf.cast(rank + 1, tf.float32)
    if number < 2:
        read.assign_add(mine)
    rows.assign_add(delta=rank + 1)
    rows.assign_sub(1)
    written.assign_add(mine, read_value=False)
    whole.assign_add(3)
    replaced.assign([mine])
    mean.assign_add(mine)
    first.assign_add(rank + 1)
    table.scatter_add(tf.IndexedSlices([mine], [1]))
    bare.assign(mine)
    return written.read_value()


GRAPH
def go(number):
    return strategy.run(step, args=(number,))


within = [float(go(tf.constant(number))) for number in range(3)]
read.assign_add(10.0)
go(tf.constant(0))
values = [v.numpy().tolist() for v in (read, rows, written, whole, replaced, mean, first, table, bare)]
"""


@pytest.mark.parametrize("graph", ["@tf.function", ""], ids=["graph", "eager"])
def test_variables_are_brought_together_as_their_aggregation_says(groups: Groups, graph: str) -> None:
    outcomes = run(groups, 2, AGGREGATED.replace("GRAPH", graph), "values", "within")
    for outcome in outcomes:
        read = 1 + 3 + 3 + 10 + 3  # in steps 0 and 1, by hand, and in step 0 again
        assert outcome.values["values"] == [read, 4, 12, 24, [3], 6, 4, [0, 6], 1.5]
        assert outcome.values["within"] == [3, 6, 9]


@pytest.mark.parametrize(
    ("made", "step", "said"),
    [
        ("0.0, aggregation=SUM", "tf.cond(rank < 5, lambda: v.assign_add(1.0), lambda: v)", "inside a condition"),
        ("0.0, aggregation=SUM, synchronization=ON_READ", "v.assign(v + 1.0)", "sets the part of one replica"),
        ("[0.0], aggregation=SUM", "v.scatter_add(tf.IndexedSlices([1.0], [0]))", "with scatter_add"),
    ],
)
def test_sums_that_are_not_to_be_had_are_refused(groups: Groups, made: str, step: str, said: str) -> None:
    program = f"""
import tensorflow as tf
SUM, ON_READ = tf.VariableAggregation.SUM, tf.VariableSynchronization.ON_READ
strategy = STRATEGY
v = tf.Variable({made})
tf.function(lambda rank: strategy.run(lambda: {step}))(tf.constant(rank))
"""
    outcomes = groups[2].run(as_written(program), bare=True)
    assert [outcome.kind for outcome in outcomes] == ["TrainingError"] * 2
    assert said in outcomes[0].error


@pytest.mark.soak
def test_moments_are_means_over_replicas(groups: Groups) -> None:
    program = LOOP.replace('keras.layers.Dense(16, "relu"), MIDDLE', "keras.layers.BatchNormalization(),")
    program = program.replace(".batch(BATCH)", ".batch(BATCH).take(1)").replace("range(2)", "range(1)")
    program += "known = x[:26]\n"
    first, second = run(groups, 2, program, "weights", "known")
    for mine, other in zip(first.values["weights"], second.values["weights"], strict=True):
        np.testing.assert_array_equal(mine, other)
    variances = [half.var(0) for half in np.split(first.values["known"], 2)]
    moving_variance = first.values["weights"][3]
    np.testing.assert_allclose(moving_variance, 0.99 + 0.01 * np.mean(variances, 0), rtol=1e-5)


OWN_ROWS = """
import keras
import numpy as np
import tensorflow as tf

strategy = STRATEGY
rows = np.arange(24.0, dtype="float32").reshape(12, 2)[: 12 - 5 * rank]


def generate():
    yield from rows


fed = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([2], "float32"))
seen = []
BATCHES


@tf.function
def total(batch):
    return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(batch,)), axis=None)


for batch in batches:
    seen.append((batch.numpy().shape[0], float(total(batch))))
mean = float(strategy.reduce("MEAN", tf.constant([1.0, 3.0, 5.0][: 3 - rank]), axis=0))
joined = strategy.gather(tf.fill([2, rank + 1], rank), axis=1).numpy()
mine = [float(v) for v in strategy.experimental_local_results(tf.constant(1.0 + rank))]


def told():
    context = tf.distribute.get_replica_context()
    return context.num_replicas_in_sync, context.replica_id_in_sync_group, context.all_reduce("MEAN", float(rank))


replica = [float(value) for value in strategy.run(told)]
"""
DISTRIBUTED = "batches = strategy.experimental_distribute_dataset(fed.batch(6))"
BY_FUNCTION = """
def make(context):
    assert context.num_input_pipelines == context.num_replicas_in_sync == 2
    assert context.input_pipeline_id == rank
    return fed.batch(context.get_per_replica_batch_size(6))
batches = strategy.distribute_datasets_from_function(make)
"""


EXPORTED = """
folder = tempfile.mkdtemp()
model.export(folder + "/keras", verbose=False)
tf.saved_model.save(model, folder + "/tf")
again = [tf.saved_model.load(folder + "/" + name).signatures["serving_default"] for name in ("keras", "tf")]
made = [list(loaded(tf.constant(x[:5])).values())[0].numpy() for loaded in again] + [model(x[:5]).numpy()]
"""


@pytest.mark.soak
def test_a_model_is_exported_after_a_loop_of_ones_own(groups: Groups) -> None:
    program = "import tempfile\n" + LOOP.replace("MIDDLE", "") + EXPORTED
    for outcome in run(groups, 2, program, "made"):
        keras_made, tf_made, here = outcome.values["made"]
        np.testing.assert_allclose(keras_made, here, rtol=1e-5)
        np.testing.assert_allclose(tf_made, here, rtol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("batches", [DISTRIBUTED, BY_FUNCTION], ids=["dataset", "function"])
def test_batches_of_own_rows_end_on_all_workers_with_the_first(groups: Groups, batches: str) -> None:
    """Rank 0 has twelve rows and rank 1 seven; global batches have six, three of each."""
    names = ("seen", "mean", "joined", "mine", "replica")
    outcomes = run(groups, 2, OWN_ROWS.replace("BATCHES", batches), *names)
    pairs = np.arange(24.0).reshape(12, 2)
    sums = [pairs[:3].sum() * 2, pairs[3:6].sum() * 2, pairs[6:9].sum() + pairs[6].sum()]
    for rank, outcome in enumerate(outcomes):
        assert outcome.values["seen"] == list(zip([3, 3, 1 if rank else 3], sums, strict=True))
        assert outcome.values["mean"] == pytest.approx((1 + 3 + 5 + 1 + 3) / 5)
        assert outcome.values["joined"].tolist() == [[0, 1, 1], [0, 1, 1]]
        assert outcome.values["mine"] == [1.0 + rank]
        assert outcome.values["replica"] == [2.0, rank, 0.5]


FIT = """
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
model.fit(batches, epochs=1, verbose=0)
weights, steps = model.get_weights(), int(model.optimizer.iterations)
"""


UNKNOWN = """
ways = {
    "known": fed.batch(6),
    "mapped": fed.batch(6).map(lambda rows: {"x": rows, "y": rows[:, 0]}),
    "uneven": fed.batch(5).map(lambda rows: (rows, tf.RaggedTensor.from_tensor(rows))),
    "windows": fed.batch(3).map(lambda rows: tf.repeat(rows, 2, axis=0)),
}
seen = {}
for name, batches in ways.items():
    batches = strategy.experimental_distribute_dataset(batches)
    seen[name] = [tf.nest.flatten(batch)[0].numpy()[:, 0].tolist() for batch in batches]
"""


def test_batches_of_own_rows_are_cut_also_where_nothing_tells_their_size(groups: Groups) -> None:
    """Rank 0 has the twelve rows 0, 2, …, 22, and rank 1 the first seven."""
    program = OWN_ROWS.partition("BATCHES")[0] + UNKNOWN
    first, second = (outcome.values["seen"] for outcome in run(groups, 2, program, "seen"))
    rows = [2.0 * number for number in range(12)]
    assert first["known"] == first["mapped"] == [rows[:3], rows[3:6], rows[6:9]]
    assert second["known"] == second["mapped"] == [rows[:3], rows[3:6], rows[6:7]]
    assert first["uneven"] == [rows[:2], rows[2:5], rows[5:7], rows[7:10]]
    assert second["uneven"] == [rows[:3], rows[3:5], rows[5:6], rows[6:7]]
    assert first["windows"][:2] == [[0, 0, 2], [2, 4, 4]]


def test_fit_takes_what_a_strategy_distributed(groups: Groups) -> None:
    given = "pairs = fed.map(lambda row: (row, row[:1])).batch(6)\n"
    found = []
    for batches in ("pairs", "strategy.experimental_distribute_dataset(pairs)"):
        program = OWN_ROWS.partition("@tf.function")[0].replace("BATCHES", f"{given}batches = {batches}") + FIT
        found.append(run(groups, 2, program, "weights", "steps"))
    as_given, distributed = found
    assert distributed[0].values["steps"] == as_given[0].values["steps"] == 3  # of four and three batches
    assert_same_weights(distributed, as_given[0].values["weights"], 0.0)
    assert np.abs(as_given[0].values["weights"][0]).max() > 0.01


SHARDED = (
    DATA
    + """
strategy = STRATEGY
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
rows = tf.data.Dataset.from_tensor_slices((x[:104], y[:104]))
rows = rows.shard(2, rank).batch(26).with_options(options)
with strategy.scope():
    model = mlp()
    model.compile(keras.optimizers.SGD(0.1), from_logits)
model.fit(rows, epochs=2, verbose=0)
weights, steps = model.get_weights(), int(model.optimizer.iterations)
"""
)


def test_rows_that_a_program_shards_by_itself_are_each_workers_own(groups: Groups) -> None:
    plain = SHARDED.replace(".shard(2, rank)", "").replace("STRATEGY", "tf.distribute.get_strategy()")
    expected = groups.plain(plain, "weights")
    outcomes = run(groups, 2, SHARDED, "weights", "steps")
    assert_same_weights(outcomes, expected.values["weights"], 1e-5)
    assert outcomes[0].values["steps"] == 8


def test_an_epoch_ends_with_the_first_worker_without_rows(groups: Groups) -> None:
    program = SHARDED.replace(
        ".shard(2, rank)", ".skip(60 * rank)"
    )  # 104 rows, and 44: three batches of 13 and one of 5
    outcomes = run(groups, 2, program, "weights", "steps")
    assert [outcome.values["steps"] for outcome in outcomes] == [8, 8]
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)


@pytest.mark.soak
def test_an_epoch_ends_so_whatever_validates(groups: Groups) -> None:
    program = SHARDED.replace(".shard(2, rank)", ".skip(60 * rank)")
    given = program.replace("verbose=0", "validation_data=(val_x, val_y), verbose=0")
    own = program.replace("verbose=0", "validation_data=rows, verbose=0")
    expected = run(groups, 2, program, "weights")
    for validating in (given, own):
        outcomes = run(groups, 2, validating, "weights", "steps")
        assert [outcome.values["steps"] for outcome in outcomes] == [8, 8]
        assert_same_weights(outcomes, expected[0].values["weights"], 0.0)


def test_a_loop_in_a_graph_over_own_rows_is_refused(groups: Groups) -> None:
    loop = """
@tf.function
def train():
    for batch in batches:
        tf.reduce_sum(batch)


train()
"""
    program = OWN_ROWS.partition("@tf.function")[0].replace("BATCHES", DISTRIBUTED) + loop
    outcomes: list[Any] = groups[2].run(as_written(program), bare=True)
    assert [outcome.kind for outcome in outcomes] == ["TrainingError"] * 2
    assert "Write the loop outside it" in outcomes[0].error


def test_what_a_strategy_has_beside_is_refused_by_name(groups: Groups) -> None:
    program = "import tensorflow as tf\nstrategy = STRATEGY\n"
    graph = "@tf.function\ndef has():\n    return 1 if strategy else 0\n\n\n"
    asked = program + graph + 'known = [hasattr(strategy, "extended"), getattr(strategy, "extended", 5), int(has())]'
    assert [o.values["known"] for o in succeeded(groups[2].run(as_written(asked), "known", bare=True))] == [
        [False, 5, 1]
    ] * 2
    outcomes = groups[2].run(as_written(program + "strategy.extended"), bare=True)
    assert [outcome.kind for outcome in outcomes] == ["StrategyAttributeError"] * 2
    assert "strategy.extended is not supported here" in outcomes[0].error


LEFT = """
import tensorflow as tf
strategy = STRATEGY


def drawn(leave):
    tf.random.set_seed(9)
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(4))
    leave(batches)
    return float(tf.random.uniform([], seed=3)), float(tf.random.uniform([]))


def leave_early(batches):
    for batch in batches:
        strategy.run(tf.identity, args=(batch,))
        break


def fail(batches):
    try:
        for batch in batches:
            raise KeyError
    except KeyError:
        pass


def look_elsewhere(batches):
    other = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
    for batch in batches:
        next(iter(other))
        within.append(float(tf.random.uniform([], seed=5)))


within = []
values = [drawn(leave) for leave in (lambda batches: None, leave_early, fail, lambda batches: next(iter(batches)))]
drawn(look_elsewhere)
"""


def test_what_is_drawn_after_a_loop_was_left_is_alike_on_all_workers(groups: Groups) -> None:
    outcomes = succeeded(groups[2].run(as_written(LEFT), "values", "within", bare=True))
    assert not set(outcomes[0].values["within"]) & set(outcomes[1].values["within"])
    for outcome in outcomes:
        assert outcome.values["values"] == [outcomes[0].values["values"][0]] * 4
