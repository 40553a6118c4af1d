"""Training loops that a cell writes itself, steps by hand, and the functions on ranks that such loops use."""

from __future__ import annotations

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded
from tests.training.harness import DATA, Group

SHARE = """
try:
    from tfos_magic import shard
except ImportError:
    shard = lambda dataset: dataset
batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(26)  # the last batch has one row
"""
MODEL = "model = mlp()\noptimizer = keras.optimizers.Adam(0.01)\n"
NORMALISED = (
    "model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), keras.layers.BatchNormalization(),"
    " keras.layers.ReLU(), keras.layers.Dense(3)])\noptimizer = keras.optimizers.SGD(0.05, momentum=0.9)\n"
)
CONVOLUTION = (
    "x = features[:131, :9].repeat(4, 1).reshape(131, 6, 6, 1)\n"
    "batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(26)\n"
    "model = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Conv2D(4, 3, activation='relu'),"
    " keras.layers.MaxPooling2D(2), keras.layers.Flatten(), keras.layers.Dense(3)])\n"
    "optimizer = keras.optimizers.SGD(0.05)\n"
)
STEP = """
loss_of = LOSS


def train(a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


"""
SUMMED = "keras.losses.SparseCategoricalCrossentropy(True, reduction='sum')"
LOOPS = {
    "eager, shares": ("for _ in range(2):\n    for a, b in shard(batches):\n        train(a, b)\n"),
    "traced, shares": (
        "train = tf.function(train)\nfor _ in range(2):\n    for a, b in shard(batches):\n        train(a, b)\n"
    ),
    "loop in a graph, shares": (
        "mine = shard(batches)\n\n@tf.function\ndef epoch():\n    for a, b in mine:\n        train(a, b)\n\n"
        "epoch()\nepoch()\n"
    ),
    "iterator in a graph, shares": (
        "mine = iter(shard(batches.repeat(2)))\n\n@tf.function\ndef some(source):\n    for _ in tf.range(6):\n"
        "        train(*next(source))\n\nsome(mine)\nsome(mine)\n"
    ),
    "eager, all rows": "for _ in range(2):\n    for a, b in batches:\n        train(a, b)\n",
    "traced, all rows": (
        "step = tf.function(train)\nfor i in range(0, 120, 20):\n    step(x[i:i + 20], y[i:i + 20])\n"
    ),
}
CASES = {
    **{name: (MODEL, "from_logits", loop) for name, loop in LOOPS.items()},
    "sum over shares": (MODEL, SUMMED, LOOPS["traced, shares"]),
    "sum over all rows": (MODEL, SUMMED, LOOPS["eager, all rows"]),
    "convolution over shares, some empty": (CONVOLUTION, "from_logits", LOOPS["traced, shares"]),
    "normalisation over shares": (NORMALISED, "from_logits", LOOPS["traced, shares"]),
}
CASES["divided by the global batch"] = (
    MODEL,
    "lambda b, logits: tf.nn.compute_average_loss(keras.losses.sparse_categorical_crossentropy(b, logits, True),"
    " global_batch_size=26)",
    LOOPS["traced, shares"],
)
HISTORY = "weights, history = model.get_weights(), {}\n"


@pytest.mark.parametrize("name", every(12, CASES))
def test_a_loop_of_the_cells_own_gives_the_weights_of_one_process(same_as_plain, name: str) -> None:
    model, loss, loop = CASES[name]
    same_as_plain(
        DATA + SHARE + model + STEP.replace("LOSS", loss) + loop + HISTORY,
        3 if "eager" in name or "empty" in name else 2,
    )


CHANGES = {
    "norm": "gradients, _ = tf.clip_by_global_norm(gradients, 0.05)",
    "value": "gradients = [tf.clip_by_value(g, -0.01, 0.01) for g in gradients]",
    "sign": "gradients = [g / (tf.norm(g) + 1e-3) for g in gradients]",
    "penalty": "gradients = [g * (1.0 + loss ** 2) for g in gradients]",
}


@pytest.mark.soak
# An iterator that comes into a graph hides what it gives: a loss there is that of the worker's rows.
@pytest.mark.parametrize(
    ("name", "change"),
    [(n, c) for n in LOOPS for c in CHANGES if n.endswith("shares") and (c != "penalty" or "iterator" not in n)],
)
def test_a_loop_that_changes_its_gradients_changes_those_of_all_rows(same_as_plain, name: str, change: str) -> None:
    step = STEP.replace("LOSS", "from_logits").replace(
        "    optimizer.apply", f"    {CHANGES[change]}\n    optimizer.apply"
    )
    model = "model = mlp()\noptimizer = keras.optimizers.SGD(0.1, momentum=0.9)\n"
    cell = DATA + SHARE + model + step + LOOPS[name] + "history, weights = {}, model.get_weights()\n"
    same_as_plain(cell, 2)


def test_gradients_by_weights_are_those_of_all_rows_beside_others(same_as_plain) -> None:
    cell = """
model = mlp()
optimizer = keras.optimizers.SGD(0.1)
for a, b in shard(batches):
    with tf.GradientTape() as tape:
        tape.watch(a)
        loss = from_logits(b, model(a, training=True))
    _, *gradients = tape.gradient(loss, [a, *model.trainable_variables])
    gradients, _ = tf.clip_by_global_norm(gradients, 0.05)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
history, weights = {}, model.get_weights()
"""
    same_as_plain(DATA + SHARE + cell, 2)


BY_ROW = {
    "jacobian": """
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(b, model(a), from_logits=True)
    rows = tape.jacobian(losses, weights_of)
""",
    "vectorized_map": """
    rows = tf.vectorized_map(of_row, (a, b))
""",
    "map_fn": """
    rows = tf.map_fn(of_row, (a, b), fn_output_signature=[v.dtype for v in weights_of])
""",
}


@pytest.mark.soak
@pytest.mark.parametrize("how", every(len(BY_ROW), BY_ROW))
def test_gradients_of_single_rows_stay_apart(same_as_plain, how: str) -> None:
    cell = f"""
model = mlp()
optimizer = keras.optimizers.SGD(0.1)
weights_of = [v.value for v in model.trainable_variables]


def of_row(row):
    with tf.GradientTape() as tape:
        loss = from_logits(row[1][None], model(row[0][None]))
    return tape.gradient(loss, weights_of)


for a, b in shard(batches):
{BY_ROW[how]}
    limited = [tf.clip_by_norm(g, 0.1, axes=list(range(1, len(g.shape)))) for g in rows]
    gradients = [tf.reduce_mean(g, 0) for g in limited]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
history, weights = {{}}, model.get_weights()
"""
    same_as_plain(DATA + SHARE.replace("batch(26)", "batch(32)").replace("(x, y)", "(x[:128], y[:128])") + cell, 2)


@pytest.mark.soak
def test_gradients_of_a_graph_are_those_of_all_rows(same_as_plain) -> None:
    cell = """
model = mlp()
optimizer = keras.optimizers.SGD(0.1)


@tf.function
def train(a, b):
    loss = from_logits(b, model(a, training=True))
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [v.value for v in model.trainable_variables]), 0.05)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


for a, b in shard(batches):
    train(a, b)
history, weights = {}, model.get_weights()
"""
    same_as_plain(DATA + SHARE + cell, 2)


def test_gradients_within_another_tape_are_added_up_when_they_are_applied(same_as_plain) -> None:
    cell = """
model = mlp()
optimizer = keras.optimizers.SGD(0.1)
for a, b in shard(batches):
    with tf.GradientTape(persistent=True) as outer:
        with tf.GradientTape() as tape:
            loss = from_logits(b, model(a, training=True))
        inside = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(inside, model.trainable_variables))
history, weights = {}, model.get_weights()
"""
    same_as_plain(DATA + SHARE + cell, 2)


@pytest.mark.soak
@pytest.mark.parametrize("shares", every(2, [True, False]))
def test_steps_by_hand_give_the_weights_and_logs_of_one_process(same_as_plain, shares: bool) -> None:
    cell = (
        DATA
        + SHARE
        + (
            """
model = mlp()
model.compile("adam", LOSS, metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)])
history = {"loss": [], "accuracy": [], "tested": []}
for a, b in SOURCE:
    logs = model.train_on_batch(a, b, return_dict=True)
    history["loss"].append(logs["loss"])
    history["accuracy"].append(logs["accuracy"])
    history["tested"].append(model.test_on_batch(a, b)[0])
weights = model.get_weights()
"""
        )
        .replace("SOURCE", "shard(batches)" if shares else "batches")
        .replace("LOSS", SUMMED)
    )
    same_as_plain(cell, 2)


@pytest.mark.soak
def test_a_loop_takes_over_the_values_of_rank_0(groups) -> None:
    cell = (
        DATA
        + SHARE
        + "keras.utils.set_random_seed(100 + rank)\n"
        + MODEL
        + "before = model.get_weights()[0]\n"
        + STEP.replace("LOSS", "from_logits")
        + LOOPS["traced, shares"]
        + HISTORY
    )
    outcomes = succeeded(groups[2].run(cell, "before", "weights"))
    assert not np.array_equal(outcomes[0].values["before"], outcomes[1].values["before"])
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)


@pytest.mark.parametrize("traced", [False, True])
def test_ranks_that_disagree_on_the_number_of_steps_end_with_a_clear_error_within_seconds(traced: bool) -> None:
    cell = DATA + MODEL + STEP.replace("LOSS", "from_logits")
    cell += "train = tf.function(train)\n" if traced else ""
    cell += "for step in range(3 + rank):\n    train(x, y)\n"
    group = Group(2)
    try:
        outcomes = group.run(cell, seconds=60.0)
    finally:
        group.close()
    for outcome in outcomes:
        assert outcome.kind == "ClusterError", outcome.error
        assert outcome.seconds < 30.0
        assert "number of steps" in outcome.error
    assert "reached the end of the cell" in outcomes[0].error


UNLIKE = {
    "the clock": "import time\nseed = time.time_ns() % 2**32",
    "the system": "import os\nseed = int.from_bytes(os.urandom(4), 'big')",
    "the hash of a string": "seed = hash('rows' + str(rank)) % 2**32",  # forked processes hash alike, others do not
}


@pytest.mark.parametrize("source", UNLIKE)
def test_a_loop_over_rows_in_an_order_that_differs_between_workers_is_refused(groups, source: str) -> None:
    shuffled = "\norder = np.random.default_rng(seed).permutation(120)\nx, y = x[order], y[order]\n"
    cell = DATA + UNLIKE[source] + shuffled + SHARE + MODEL + STEP.replace("LOSS", "from_logits")
    for outcome in groups[2].run(cell + LOOPS["eager, all rows" if "hash" in source else "traced, all rows"]):
        assert outcome.kind == "TrainingError", outcome.error
        assert "in a different order" in outcome.error


ALIKE = """
import random

order = np.random.default_rng().permutation(120)
random.shuffle(order)
np.random.shuffle(order)
order = random.Random().sample(order.tolist(), 120)
x, y = x[order], y[order]
noise = tf.random.normal([120, 12]) + keras.random.normal((120, 12)) + np.random.RandomState().normal(size=(120, 12))
x = x + noise.numpy().astype("float32")
"""


def test_a_loop_over_rows_that_generators_without_a_seed_shuffled_trains(groups) -> None:
    cell = DATA + ALIKE + MODEL + STEP.replace("LOSS", "from_logits") + LOOPS["traced, all rows"] + HISTORY
    outcomes = succeeded(groups[2].run(cell, "weights", "order"))
    assert outcomes[0].values["order"] == outcomes[1].values["order"]
    assert_same_weights(outcomes, outcomes[0].values["weights"], 0.0)


def test_a_request_stops_a_loop_at_the_same_step_on_every_rank(groups) -> None:
    group = groups[2]
    cell = (
        DATA
        + SHARE
        + MODEL
        + STEP.replace("LOSS", "from_logits")
        + (
            """
train, raised = tf.function(train), ""
try:
    for a, b in shard(batches.repeat()):
        train(a, b)
except Exception as error:
    raised = type(error).__name__
steps = int(optimizer.iterations.numpy())
"""
        )
    )

    def ask(rank: int, message: object) -> None:
        if getattr(message, "rows", 0) > 100:
            group.stop(1)

    outcomes = succeeded(group.run(cell, "raised", "steps", on_message=ask))
    assert outcomes[0].values == outcomes[1].values
    assert outcomes[0].values["raised"] == "RunStopped"


RANKS = """
import tensorflow as tf
import tfos_magic as tfos


def everything():
    me = tf.constant(tfos.rank())
    return {
        "mean": tfos.allreduce(me),
        "sum": tfos.allreduce({"a": tf.fill([2], me + 1), "b": 0.5}, op="sum"),
        "sent": tfos.broadcast(me, root=tfos.size() - 1),
        "flag": tfos.broadcast(tf.equal(me, 0)),
        "rows": tfos.allgather(tf.fill([tfos.rank(), 2], me)),
        "scalars": tfos.allgather(me),
    }


place = tfos.rank(), tfos.size(), tfos.local_rank()
eager = tf.nest.map_structure(lambda t: t.numpy().tolist(), everything())
traced = tf.nest.map_structure(lambda t: t.numpy().tolist(), tf.function(everything)())
slope = tf.constant(3.0)
with tf.GradientTape() as tape:
    tape.watch(slope)
    reduced = tfos.allreduce(slope * (tfos.rank() + 1))
gradient = float(tape.gradient(reduced, slope))
tfos.barrier()
"""


@pytest.mark.parametrize("size", every(2, [2, 1, 3]))
def test_the_functions_on_ranks_do_what_their_names_say_eagerly_and_in_graphs(groups, size: int) -> None:
    for rank, outcome in enumerate(succeeded(groups[size].run(RANKS, "place", "eager", "traced", "gradient"))):
        assert outcome.values["place"][:2] == (rank, size)
        assert outcome.values["eager"] == outcome.values["traced"]
        total = size * (size + 1) // 2
        assert outcome.values["eager"] == {
            "mean": (size - 1) / 2,
            "sum": {"a": [total, total], "b": 0.5 * size},
            "sent": size - 1,
            "flag": True,
            "rows": [[r, r] for r in range(size) for _ in range(r)],
            "scalars": list(range(size)),
        }
        assert outcome.values["gradient"] == rank + 1


def test_outside_of_a_run_a_process_is_rank_0_of_1() -> None:
    import tfos_magic as tfos

    assert (tfos.rank(), tfos.size(), tfos.local_rank()) == (0, 1, 0)
    assert float(tfos.allreduce(3)) == 3.0
    tfos.barrier()


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        ("tfos.allreduce('text')", "send numbers"),
        ("tfos.allreduce(1, op='max')", "op='sum'"),
        ("tfos.broadcast(1, root=9)", "from 0 to 1"),
        ("tfos.shard([1, 2])", "from_tensor_slices"),
    ],
)
def test_what_ranks_cannot_do_is_refused_with_what_to_write_instead(groups, call: str, remedy: str) -> None:
    for outcome in groups[2].run("import tfos_magic as tfos\n" + call):
        assert outcome.kind == "TrainingError", outcome.error
        assert remedy in outcome.error
