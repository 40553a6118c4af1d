"""Sending a partition to real receivers, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tests.feed_access import TOKEN, feed_access
from tfos_magic.columns.columns import Column, FeedPlan, decode_schema, encode_schema
from tfos_magic.columns.list_lengths import ListLengths, settle
from tfos_magic.errors import DataError, FeedError
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.task import feed_partition
from tfos_magic.feed.task.feed_partition import FeedJob, send_partition
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset

pytestmark = pytest.mark.slow

PLAN = FeedPlan((Column("x", "list", "float32"), Column("y", "bytes", "bytes")))
SETTLED = encode_schema(settle(decode_schema(PLAN.schema), ListLengths({("x",): ((2, 2),)})))
World = tuple[list[Spool], list[FeedFlightServer], FeedJob]


@pytest.fixture
def world() -> Iterator[World]:
    spools = [Spool() for _ in range(3)]
    receivers = [FeedFlightServer("127.0.0.1", feed_access(), spool) for spool in spools]
    for rank, (spool, receiver) in enumerate(zip(spools, receivers, strict=True)):
        spool.open("f", rank, 3, PLAN.schema)
        receiver.start()
    yield (
        spools,
        receivers,
        FeedJob("f", PLAN, tuple(receiver.endpoint for receiver in receivers), feed_access(), timeout=20),
    )
    for spool, receiver in zip(spools, receivers, strict=True):
        receiver.close()
        spool.close()


def batch(start: int, rows: int, width: int = 2) -> pa.RecordBatch:
    values = np.repeat(np.arange(start, start + rows, dtype=np.float32), width)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
    text = pa.array([str(i) for i in range(start, start + rows)])
    return pa.record_batch({"x": pa.ListArray.from_arrays(offsets, pa.array(values)), "y": text})


def test_rows_keep_their_turn_across_batches_of_every_size(world: World) -> None:
    spools, _, job = world
    sizes = [1, 0, 5, 100, 2]
    starts = np.cumsum([0, *sizes])
    sent = send_partition(job, 4, 7, [batch(int(s), n) for s, n in zip(starts, sizes, strict=False)])
    assert (sent.rows, sent.error) == (108, None)
    assert [spool.commit("f", [(4, 7, 108)])[0] for spool in spools] == [36, 36, 36]


@pytest.mark.parametrize("group_bytes", [1, feed_partition.GROUP_BYTES])
def test_every_row_goes_to_the_rank_it_is_dealt_to(
    world: World, monkeypatch: pytest.MonkeyPatch, group_bytes: int
) -> None:
    spools, _, job = world
    monkeypatch.setattr(feed_partition, "GROUP_BYTES", group_bytes)
    sizes = {0: [1, 1, 3], 1: [2], 2: [4, 1, 1, 1, 7, 0, 2]}
    for partition, parts in sizes.items():
        starts = np.cumsum([100 * partition, *parts])
        send_partition(job, partition, 1, [batch(int(s), n) for s, n in zip(starts, parts, strict=False)])
    totals = [(partition, 1, sum(parts)) for partition, parts in sizes.items()]
    for rank, spool in enumerate(spools):
        spool.commit("f", totals, SETTLED)
        (given,) = feed_dataset(spool.handle("f"), batch_size=100).as_numpy_iterator()
        assert [int(text) for text in given["y"]] == expected_shares(totals)[rank]


def expected_shares(totals: list[tuple[int, int, int]]) -> list[list[int]]:
    """The numbers of the rows of each of three ranks, by the rule said row by row."""
    shares: list[list[int]] = [[], [], []]
    before = 0
    for partition, _, rows in totals:
        dealt = rows - rows % 3
        for row in range(rows):
            shares[row % 3 if row < dealt else (before + row - dealt) % 3].append(100 * partition + row)
        before += rows - dealt
    return shares


def test_a_large_batch_is_cut_and_small_ones_are_joined(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    spools, receivers, _ = world
    spools[0].open("f", 0, 1, PLAN.schema)
    job = FeedJob("f", PLAN, (receivers[0].endpoint,), feed_access(), timeout=20)
    send_partition(job, 0, 1, [batch(i, 1) for i in range(500)])
    spools[0].commit("f", [(0, 1, 500)])
    assert len(spools[0].handle("f").blocks) == 1
    spools[0].open("f", 0, 1, PLAN.schema)
    monkeypatch.setattr(feed_partition, "MESSAGE_BYTES", 1000)
    send_partition(job, 0, 1, [batch(0, 500)])
    spools[0].commit("f", [(0, 1, 500)])
    assert len(spools[0].handle("f").blocks) >= 7


def test_what_was_sent_tells_the_widths_even_where_a_rank_gets_no_row(world: World) -> None:
    _, _, job = world
    three = send_partition(job, 0, 1, [batch(0, 1, width=3)])
    five = send_partition(job, 1, 2, [batch(0, 4, width=5), batch(4, 1, width=4)])
    assert three.widths.seen == {("x",): ((3, 3),)}
    assert three.widths.merge(five.widths).seen == {("x",): ((3, 5),)}
    assert (three.rows, five.rows) == (1, 5)


def test_one_bad_partition_ends_the_others_before_they_read_all_their_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, job = world
    bad = pa.record_batch({"x": batch(0, 1).column(0), "y": pa.array([None], pa.string())})
    assert isinstance(send_partition(job, 0, 1, [bad]).error, DataError)
    monkeypatch.setattr(feed_partition, "GROUP_BYTES", 100)
    asked: list[int] = []

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            asked.append(len(asked))
            yield batch(0, 100)

    sent = send_partition(job, 1, 2, endless())
    assert "column 'y' has nulls" in str(sent.error)
    assert len(asked) < 5


def test_a_receiver_that_is_gone_is_named_with_its_rank(world: World) -> None:
    _, receivers, job = world
    receivers[2].close()
    with pytest.raises(FeedError, match=re.escape(f"worker 2 at {job.endpoints[2].uri} cannot be reached")):
        send_partition(job, 0, 1, [batch(0, 10)])


def test_a_feed_that_was_released_meanwhile_is_refused(world: World) -> None:
    spools, _, job = world
    spools[1].release("f")
    sent = send_partition(job, 0, 1, [batch(0, 10)])
    assert isinstance(sent.error, FeedError)
    assert "not open here" in str(sent.error)


def test_a_partition_without_rows_sends_nothing(world: World) -> None:
    spools, _, job = world
    assert send_partition(job, 0, 1, []).rows == 0
    assert [spool.rows() for spool in spools] == [{"f": 0}] * 3


def test_neither_token_nor_key_shows_in_the_job(world: World) -> None:
    job = FeedJob("f", PLAN, (), feed_access())
    assert TOKEN not in repr(job)
    assert "PRIVATE" not in repr(job)
