"""A cell trains on ragged arrays, structs and masks of a feed as one plain process does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.training.conftest import Groups, assert_same_history, assert_same_weights, succeeded
from tfos_magic.columns.arrow import WireConverter, settle
from tfos_magic.columns.columns import Column, FeedPlan, encode_schema
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.task.row_partitioner import RowPartitioner

ROWS = 41
BATCH = 10
COLUMNS = (
    Column("tokens", "list", "int64"),
    Column("who", "struct", fields=(Column("size", "scalar", "float32"), Column("age", "scalar", "float32"))),
    Column("seen", "scalar", "float32", masked=True),
    Column("y", "scalar", "float32"),
)
CELL = """
import keras
from tfos_magic.columns.selection import Selection
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset

keras.utils.set_random_seed(3)
tokens = keras.Input((None,), dtype="int64", name="tokens")
size, age, seen = (keras.Input((), name=name) for name in ("size", "age", "seen"))
mask = keras.Input((), dtype="bool", name="seen_mask")
inputs = {"tokens": tokens, "who": {"size": size, "age": age}, "seen": seen, "seen_mask": mask}
words = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 4, mask_zero=True)(tokens))
numbers = [keras.ops.expand_dims(keras.ops.cast(each, "float32"), 1) for each in (size, age, seen, mask)]
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([words, *numbers])))
model.compile(keras.optimizers.SGD(0.1), "mse")
train = feed_dataset(handles[rank], batch_size=batch_size, selection=Selection(label="y"))
spec = train.element_spec[0]
train = train.map(lambda x, y: ({**x, "tokens": x["tokens"].to_tensor()}, y))
history = model.fit(train, epochs=2, verbose=0).history
weights = model.get_weights()
kinds = [type(spec["tokens"]).__name__, list(spec["who"]), spec["seen_mask"].dtype.name]
"""


@pytest.fixture
def spools() -> Iterator[list[Spool]]:
    made = [Spool() for _ in range(3)]
    yield made
    for spool in made:
        spool.close()


def feed(spools: list[Spool], world: int) -> list[dict[str, Any]]:
    """Spool the same rows for ``world`` ranks; gives the handles."""
    random = np.random.default_rng(0)
    plan = FeedPlan(COLUMNS, ("y",))
    rows = [
        {
            "tokens": random.integers(1, 20, random.integers(1, 6)).tolist(),
            "who": {"size": random.normal(), "age": random.normal()},
            "seen": random.normal() if k % 3 else None,
            "y": random.normal(),
        }
        for k in range(ROWS)
    ]
    numbers = pa.float32()
    schema = pa.schema(
        {
            "tokens": pa.list_(pa.int64()),
            "who": pa.struct({"size": numbers, "age": numbers}),
            "seen": numbers,
            "y": numbers,
        }
    )
    converter, dealer = WireConverter(plan), RowPartitioner(world)
    dealer.deal(converter.convert(pa.RecordBatch.from_pylist(rows, schema=schema)))
    tail, shares = dealer.tail(converter.schema), dealer.take()
    settled = encode_schema(settle(converter.schema, converter.widths))
    handles = []
    for rank in range(world):
        spools[rank].open("f", rank, world, plan.schema)
        for share in shares[rank]:
            spools[rank].append("f", 0, 1, share)
        spools[rank].append_tail("f", 0, 1, tail)
        spools[rank].commit("f", [(0, 1, ROWS)], settled)
        handles.append(spools[rank].handle("f"))
    return handles


@pytest.mark.soak
def test_ragged_arrays_structs_and_masks_train_as_in_one_process(groups: Groups, spools: list[Spool]) -> None:
    names = ("weights", "history", "kinds")
    inputs = {"batch_size": BATCH, "handles": feed(spools, 1)}
    (plain,) = succeeded(groups[0].run(CELL, *names, inputs=inputs))
    assert plain.values["kinds"] == ["RaggedTensorSpec", ["size", "age"], "bool"]
    for world in (2, 3):  # of three ranks, two have no row in the last global batch
        inputs["handles"] = feed(spools, world)
        outcomes = succeeded(groups[world].run(CELL, *names, inputs=inputs))
        assert_same_weights(outcomes, plain.values["weights"], 1e-5)
        assert_same_history(outcomes[0].values["history"], plain.values["history"])
