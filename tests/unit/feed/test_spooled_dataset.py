"""A spooled feed as tf.data: shapes, order, epochs, and nothing held once it is gone."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tfos_magic.columns.arrow import WireConverter, settle
from tfos_magic.columns.columns import Column, FeedPlan, decode_schema, encode_schema
from tfos_magic.columns.list_lengths import ListLengths
from tfos_magic.columns.selection import Selection
from tfos_magic.errors import DataError, FeedError
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.task.row_partitioner import RowPartitioner
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset
from tfos_magic.training.inputs.marks import is_sharded, rows_by_step
from tfos_magic.transport.messages import SpoolHandle

pytestmark = pytest.mark.slow

PLAN = FeedPlan(
    (
        Column("x", "list", "float32"),
        Column("flag", "scalar", "bool"),
        Column("s", "bytes", "bytes"),
        Column("id", "scalar", "int64"),
    )
)
SETTLED = encode_schema(settle(decode_schema(PLAN.schema), ListLengths({("x",): ((3, 3),)})))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(str(tmp_path))
    yield made
    made.close()


def wire_rows(start: int, rows: int) -> pa.RecordBatch:
    ids = np.arange(start, start + rows)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 3)
    return WireConverter(PLAN).convert(
        pa.record_batch(
            {
                "x": pa.ListArray.from_arrays(offsets, pa.array(np.repeat(ids, 3).astype(np.float32))),
                "flag": pa.array(ids % 2 == 0),
                "s": pa.array([f"row {i}" for i in ids]),
                "id": pa.array(ids),
            }
        )
    )


def fill(spool: Spool, blocks: list[list[int]], rank: int = 0, world: int = 1, feed_id: str = "f") -> SpoolHandle:
    """Spool partitions whose blocks have these numbers of rows, numbered throughout; gives the handle."""
    spool.open(feed_id, rank, world, PLAN.schema)
    start, partitions = 0, []
    for partition, sizes in enumerate(blocks):
        dealer = RowPartitioner(world)
        for rows in sizes:
            dealer.deal(wire_rows(start, rows))
            start += rows
            for share in dealer.take()[rank]:
                spool.append(feed_id, partition, 0, share)
        spool.append_tail(feed_id, partition, 0, dealer.tail(wire_rows(0, 1).schema))
        partitions.append([partition, 0, dealer.rows])
    spool.commit(feed_id, partitions, SETTLED)
    return spool.handle(feed_id)


def test_batches_run_across_blocks_and_partitions_in_order(spool: Spool) -> None:
    dataset = feed_dataset(fill(spool, [[3, 4], [], [1, 9]]), batch_size=5)
    batches = list(dataset.as_numpy_iterator())
    assert [batch["id"].tolist() for batch in batches] == [list(range(s, min(17, s + 5))) for s in range(0, 17, 5)]
    np.testing.assert_array_equal(batches[1]["x"], np.repeat(np.arange(5, 10), 3).reshape(5, 3).astype(np.float32))
    assert batches[1]["flag"].tolist() == [False, True, False, True, False]
    assert batches[1]["s"].tolist() == [f"row {i}".encode() for i in range(5, 10)]


def test_columns_side_by_side_are_one_matrix_with_label_and_weight_beside_it(spool: Spool) -> None:
    handle = fill(spool, [[3, 4]])
    selection = Selection.of(["id", "x"], "flag", matrix=True)
    (features, label), *_ = feed_dataset(handle, batch_size=4, selection=selection).as_numpy_iterator()
    np.testing.assert_array_equal(features, np.repeat(np.arange(4.0), 4).reshape(4, 4).astype(np.float32))
    assert (features.dtype, label.tolist()) == (np.float32, [True, False, True, False])
    weighed = Selection.of(["x"], "flag", "id")
    element = next(feed_dataset(handle, batch_size=4, selection=weighed).as_numpy_iterator())
    assert [part.shape for part in element] == [(4, 3), (4,), (4,)]
    assert element[2].tolist() == [0, 1, 2, 3]


def test_every_epoch_gives_the_same_rows(spool: Spool) -> None:
    dataset = feed_dataset(fill(spool, [[7], [6]]), batch_size=4)
    epochs = [[batch["id"].tolist() for batch in dataset.as_numpy_iterator()] for _ in range(3)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert [number for batch in epochs[0] for number in batch] == list(range(13))


def test_ranks_take_the_same_number_of_steps_and_a_share_may_be_empty(spool: Spool) -> None:
    shares = [
        list(feed_dataset(fill(spool, [[1], [1], [3]], rank, 3, f"f{rank}"), batch_size=2).as_numpy_iterator())
        for rank in range(3)
    ]
    assert [len(share) for share in shares] == [3, 3, 3]
    together = [sorted(np.concatenate([batch["id"] for batch in step]).tolist()) for step in zip(*shares, strict=True)]
    assert together == [[0, 1], [2, 3], [4]]
    empty = next(batch for share in shares for batch in share if not len(batch["id"]))
    assert empty["x"].shape == (0, 3)
    assert empty["s"].shape == (0,)
    assert empty["flag"].dtype == np.bool_


def test_a_rank_without_any_rows_still_steps_along(spool: Spool) -> None:
    dataset = feed_dataset(fill(spool, [[1]], rank=1, world=2), batch_size=8)
    assert [batch["x"].shape for batch in dataset.as_numpy_iterator()] == [(0, 3)]


def test_structure_shapes_and_cardinality_are_known_beforehand(spool: Spool) -> None:
    handle = fill(spool, [[8, 3]])
    spec = feed_dataset(handle, batch_size=4).element_spec
    assert spec["x"] == tf.TensorSpec((None, 3), tf.float32)
    assert spec["s"] == tf.TensorSpec((None,), tf.string)
    one = feed_dataset(handle, batch_size=4, selection=Selection(features=["x"], label="id"))
    assert one.element_spec == (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None,), tf.int64))
    several = feed_dataset(handle, batch_size=11, selection=Selection(label="id"))
    assert list(several.element_spec[0]) == ["x", "flag", "s"]
    assert several.element_spec[1] == tf.TensorSpec((11,), tf.int64)
    assert [int(each.cardinality()) for each in (one, several)] == [3, 1]


def test_it_is_marked_as_shared_out_already(spool: Spool) -> None:
    dataset = feed_dataset(fill(spool, [[4]]), batch_size=2)
    assert is_sharded(dataset)
    assert is_sharded(dataset.map(lambda columns: columns["x"]).prefetch(1))


def test_an_unknown_column_and_a_senseless_batch_size_are_refused(spool: Spool) -> None:
    handle = fill(spool, [[4]])
    with pytest.raises(DataError, match=r"no column 'z'.*'x', 'flag', 's', 'id'"):
        feed_dataset(handle, batch_size=2, selection=Selection(features=["z"]))
    with pytest.raises(DataError, match="no column 'y'"):
        feed_dataset(handle, batch_size=2, selection=Selection(label="y"))
    with pytest.raises(DataError, match="at least 1"):
        feed_dataset(handle, batch_size=0)


def test_a_released_feed_is_not_mistaken_for_another_file(spool: Spool) -> None:
    handle = fill(spool, [[4]])
    spool.release("f")
    with pytest.raises(FeedError, match="run the cell again"):
        feed_dataset(handle, batch_size=2)
    fill(spool, [[4]], feed_id="another, which may take the number of the first")
    with pytest.raises(FeedError, match="run the cell again"):
        feed_dataset(handle, batch_size=2)


def test_a_dataset_outlives_the_release_of_its_feed(spool: Spool) -> None:
    dataset = feed_dataset(fill(spool, [[4]]), batch_size=4)
    spool.release("f")
    assert next(dataset.as_numpy_iterator())["id"].tolist() == [0, 1, 2, 3]


def mappings(folder: Path) -> int:
    """How many times this process holds files of ``folder``: descriptors and memory mappings."""
    maps = sum(f"{folder}/" in line for line in Path("/proc/self/maps").read_text().splitlines())
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return maps + sum(os.path.exists(link) and os.readlink(link).startswith(f"{folder}/") for link in links)


def test_twenty_datasets_that_went_leave_no_mapping_and_no_descriptor(spool: Spool, tmp_path: Path) -> None:
    handle = fill(spool, [[40], [2]])
    before = mappings(tmp_path)
    for _ in range(20):
        dataset = feed_dataset(handle, batch_size=8, selection=Selection(label="id")).map(
            lambda features, label: (features["x"], label)
        )
        for _ in range(2):
            assert sum(len(label) for _, label in dataset.as_numpy_iterator()) == 42
    assert mappings(tmp_path) > before
    del dataset
    gc.collect()
    assert mappings(tmp_path) == before


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_dataset_tells_which_rows_of_the_dataframe_the_next_epoch_gives(spool: Spool, shuffle: bool) -> None:
    for rank in range(2):
        handle = fill(spool, [[3, 4], [], [1, 9]], rank, 2, f"f{rank}")
        dataset = feed_dataset(handle, batch_size=5, shuffle=shuffle, seed=3)
        for _ in range(2):
            numbers = rows_by_step(dataset.map(lambda columns: columns["id"]).prefetch(1))
            assert numbers is not None
            given = [batch["id"].tolist() for batch in dataset.as_numpy_iterator()]
            assert [numbers(step).tolist() for step in range(len(given))] == given
