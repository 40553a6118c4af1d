"""A streamed feed as tf.data, over real Flight: its batches are those of a spooled feed; a reader that goes is seen."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tests.feed_access import TOKEN, feed_access
from tests.soak import every
from tfos_magic.columns.arrow import WireConverter
from tfos_magic.columns.columns import Column, FeedPlan, decode_schema, encode_schema
from tfos_magic.columns.list_lengths import ListLengths, settle
from tfos_magic.columns.selection import Selection
from tfos_magic.errors import DataError
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.agent.stream_buffers import StreamBuffers, stream_id
from tfos_magic.feed.agent.stream_parts import Superseded
from tfos_magic.feed.task.feed_partition import FeedJob, send_partition
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset
from tfos_magic.feed.trainer.streamed_dataset import stream_dataset
from tfos_magic.training.inputs.marks import is_sharded
from tfos_magic.transport.messages import FeedDropped, FeedWanted, Message, SpoolHandle, StreamHandle

pytestmark = pytest.mark.slow

PLAN = FeedPlan((Column("x", "list", "float32"), Column("y", "bytes", "bytes"), Column("id", "scalar", "int64")))
SCHEMA = encode_schema(settle(decode_schema(PLAN.schema), ListLengths({("x",): ((2, 2),)})))
WORLD = 3


def spark_rows(start: int, rows: int) -> pa.RecordBatch:
    ids = np.arange(start, start + rows)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 2)
    x = pa.ListArray.from_arrays(offsets, pa.array(np.repeat(ids, 2).astype(np.float32)))
    return pa.record_batch({"x": x, "y": pa.array([f"row {i}" for i in ids]), "id": pa.array(ids)})


class Ranks:
    """The agents' side of three ranks, and what they told the kernel."""

    def __init__(self) -> None:
        self.told: Queue[tuple[int, Message]] = Queue()
        self.spools = [Spool() for _ in range(WORLD)]
        self.streams = [
            StreamBuffers(spool, lambda message, rank=rank: self.told.put((rank, message)))  # type: ignore[misc]
            for rank, spool in enumerate(self.spools)
        ]
        self.receivers = [
            FeedFlightServer("127.0.0.1", feed_access(), spool, streams)
            for spool, streams in zip(self.spools, self.streams, strict=True)
        ]
        for receiver in self.receivers:
            receiver.start()
        self.endpoints = tuple(receiver.endpoint for receiver in self.receivers)

    def lease(self, lease: str) -> list[StreamHandle]:
        """Gives the handles by rank."""
        for streams in self.streams:
            streams.lease(lease)
        return [
            StreamHandle(lease, SCHEMA, WORLD, rank=rank, socket=endpoint.socket, token=TOKEN)
            for rank, endpoint in enumerate(self.endpoints)
        ]

    def open(self, lease: str, epoch: int) -> FeedJob:
        for rank, streams in enumerate(self.streams):
            streams.open(stream_id(lease, epoch), rank, WORLD, SCHEMA)
        return FeedJob(stream_id(lease, epoch), PLAN, self.endpoints, feed_access(), 60, SCHEMA)

    def spool(self, partitions: list[list[int]]) -> list[SpoolHandle]:
        job = FeedJob("spooled", PLAN, self.endpoints, feed_access(), 60)
        for rank, spool in enumerate(self.spools):
            spool.open("spooled", rank, WORLD, PLAN.schema)
        totals = send(job, partitions)
        for spool in self.spools:
            spool.commit("spooled", totals, SCHEMA)
        return [spool.handle("spooled") for spool in self.spools]

    def close(self) -> None:
        for streams, receiver, spool in zip(self.streams, self.receivers, self.spools, strict=True):
            streams.close()
            receiver.close()
            spool.close()


def send(job: FeedJob, partitions: list[list[int]]) -> list[tuple[int, int, int]]:
    """Send partitions whose batches have these numbers of rows, numbered throughout."""
    totals, start = [], 0
    for partition, sizes in enumerate(partitions):
        starts = start + np.cumsum([0, *sizes])
        sent = send_partition(job, partition, 1, [spark_rows(int(s), n) for s, n in zip(starts, sizes, strict=False)])
        if sent.error:
            raise sent.error
        totals.append((partition, 1, sent.rows))
        start = int(starts[-1])
    return totals


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    made.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8, thread_name_prefix="tfos-test") as threads:
        yield threads


def epoch_of(dataset: tf.data.Dataset) -> list[Any]:
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize("batch_size", [4, 13, 1000])
def test_batches_of_a_streamed_feed_are_those_of_a_spooled_one_in_every_epoch(
    ranks: Ranks, pool: ThreadPoolExecutor, batch_size: int
) -> None:
    partitions = [[5, 1], [], [1], [30, 0, 7], [2]]
    spooled = [epoch_of(feed_dataset(handle, batch_size=batch_size)) for handle in ranks.spool(partitions)]
    datasets = [stream_dataset(handle, batch_size=batch_size) for handle in ranks.lease("l")]
    for epoch in range(2):
        job = ranks.open("l", epoch)
        reading = [pool.submit(epoch_of, dataset) for dataset in datasets]
        send(job, partitions)
        for streams in ranks.streams:
            stream = streams.get(job.feed_id)
            assert stream is not None
            stream.finish(len(partitions))
        for read, expected in zip(reading, spooled, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, read.result(30), expected)
    assert [ranks.told.get(timeout=5) for _ in range(6)].count((1, FeedWanted("l", 1))) == 1
    assert ranks.told.empty()


def test_shuffled_rows_are_all_there_in_another_order_each_epoch_and_batches_keep_their_sizes(
    ranks: Ranks, pool: ThreadPoolExecutor
) -> None:
    partitions = [[500], [333, 400]]
    plain = [epoch_of(feed_dataset(handle, batch_size=50)) for handle in ranks.spool(partitions)]
    datasets = [stream_dataset(handle, batch_size=50, shuffle=True, seed=5) for handle in ranks.lease("l")]
    orders = []
    for epoch in range(2):
        job = ranks.open("l", epoch)
        reading = [pool.submit(epoch_of, dataset) for dataset in datasets]
        send(job, partitions)
        for streams in ranks.streams:
            streams.get(job.feed_id).finish(2)  # type: ignore[union-attr]
        got = [read.result(30) for read in reading]
        sizes = [[len(batch["id"]) for batch in batches] for batches in got]
        assert sizes == [[len(batch["id"]) for batch in batches] for batches in plain]
        orders.append([int(i) for batches in got for batch in batches for i in batch["id"]])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(1233))
    assert orders[0] != orders[1]


def test_structure_is_known_before_a_row_has_come_and_it_is_marked_as_shared_out(ranks: Ranks) -> None:
    dataset = stream_dataset(ranks.lease("l")[0], batch_size=4, selection=Selection(features=["x"], label="id"))
    assert dataset.element_spec == (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec((None,), tf.int64))
    assert is_sharded(dataset.map(lambda x, y: (x, y)))
    assert ranks.told.empty()


@pytest.mark.parametrize("batches_read", every(2, [1, 3]))
def test_an_iterator_that_is_dropped_early_is_told_and_its_rows_hold_nobody_back(
    ranks: Ranks, pool: ThreadPoolExecutor, batches_read: int
) -> None:
    dataset = stream_dataset(ranks.lease("l")[0], batch_size=30)
    job = ranks.open("l", 0)
    for streams in ranks.streams[1:]:
        streams.get(job.feed_id).drop()  # type: ignore[union-attr]
    sending = pool.submit(send, job, [[50_000] * 20] * 2)
    iterator = iter(dataset)
    for _ in range(batches_read):
        assert next(iterator)["x"].shape == (10, 2)
    del iterator
    gc.collect()
    assert sending.result(60)
    assert ranks.told.get(timeout=10) == (0, FeedWanted("l", 0))
    assert ranks.told.get(timeout=10) == (0, FeedDropped("l", 0))


def test_bad_rows_reach_the_reader_by_their_own_name(ranks: Ranks, pool: ThreadPoolExecutor) -> None:
    job = ranks.open("l", 0)
    reading = pool.submit(epoch_of, stream_dataset(ranks.lease("l")[0], batch_size=3))
    nulls = pa.record_batch(
        {**dict(zip(("x", "y"), spark_rows(0, 1).columns, strict=False)), "id": pa.array([None], pa.int64())}
    )
    sent = send_partition(job, 0, 1, [nulls])
    assert isinstance(sent.error, DataError)
    with pytest.raises(DataError, match="has nulls"):
        send(job, [[], [9]])
    assert not reading.done()
    ranks.streams[0].get(job.feed_id).fail(sent.error)  # type: ignore[union-attr]
    with pytest.raises(tf.errors.OpError, match=r"DataError: column 'id' has nulls"):
        reading.result(30)


def test_an_attempt_that_another_has_replaced_ends_and_the_feed_does_not(ranks: Ranks) -> None:
    ranks.lease("l")
    job = ranks.open("l", 0)
    second = WireConverter(PLAN, decode_schema(SCHEMA)).convert(spark_rows(0, 1))
    ranks.streams[0].get(job.feed_id).append(0, 2, second, lambda: False)  # type: ignore[union-attr]
    with pytest.raises(Superseded):
        send_partition(job, 0, 1, [spark_rows(0, 1)])
    assert send_partition(job, 0, 3, [spark_rows(0, 1)]).error is None


def test_a_reader_of_a_run_that_ends_is_let_go(ranks: Ranks, pool: ThreadPoolExecutor) -> None:
    reading = [pool.submit(epoch_of, stream_dataset(handle, batch_size=3)) for handle in ranks.lease("l")]
    ranks.open("l", 0)
    for _ in range(WORLD):
        ranks.told.get(timeout=10)
    for streams in ranks.streams:
        streams.release("l")
    for read in reading:
        with pytest.raises(tf.errors.OpError, match="has ended"):
            read.result(10)


def test_a_trainer_in_the_place_of_another_reads_its_epoch_from_the_beginning(
    ranks: Ranks, pool: ThreadPoolExecutor
) -> None:
    handle = ranks.lease("l")[0]
    job = ranks.open("l", 0)
    first = iter(stream_dataset(handle, batch_size=30))
    sending = pool.submit(send, job, [[50_000] * 20])
    next(first)
    again = pool.submit(lambda: next(iter(stream_dataset(handle, batch_size=30)))["id"].numpy().tolist())
    assert [ranks.told.get(timeout=10) for _ in range(2)] == [(0, FeedWanted("l", 0))] * 2
    for rank, streams in enumerate(ranks.streams):
        streams.open(job.feed_id, rank, WORLD, SCHEMA, keep_rows=False)
        streams.open(stream_id("l", 0, 1), rank, WORLD, SCHEMA)
    assert sending.result(60), "tasks that were held back by the stream that nobody reads any more"
    anew = FeedJob(stream_id("l", 0, 1), PLAN, ranks.endpoints, feed_access(), 60, SCHEMA, ranks=(0,))
    send(anew, [[300]])
    assert again.result(20) == list(range(0, 30, 3))
