"""The buffer of a streamed epoch: order, back-pressure, attempts that replace others, readers that go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tfos_magic.columns.columns import Column, FeedPlan, decode_schema
from tfos_magic.errors import DataError, FeedError
from tfos_magic.feed.agent import delivered_rows
from tfos_magic.feed.agent.disk_quota import DiskQuota
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.agent.stream_buffer import StreamBuffer
from tfos_magic.feed.agent.stream_buffers import StreamBuffers
from tfos_magic.feed.agent.stream_parts import NextRows, Superseded
from tfos_magic.transport.messages import FeedRecomputed, FeedWanted, Message

pytestmark = pytest.mark.slow

PLAN = FeedPlan((Column("x", "scalar", "int64"),))
SCHEMA = decode_schema(PLAN.schema)
KILOBYTE_ROWS = 128
Make = Callable[..., StreamBuffer]


def never() -> bool:
    return False


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def block(number: int) -> pa.RecordBatch:
    """A kilobyte of rows that all hold ``number``."""
    return rows(*[number] * KILOBYTE_ROWS)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes streams of one rank of one, with 64 kB of disk and 4 kB of memory unless told otherwise."""
    made: list[StreamBuffer] = []

    def new(limit: int = 64 << 10, **how: Any) -> StreamBuffer:
        budget = DiskQuota(str(tmp_path), limit)
        settings = {"head_bytes": 4 << 10, "patience": 60.0, **how}
        made.append(StreamBuffer(PLAN.schema, 0, 1, directory=str(tmp_path), budget=budget, **settings))
        return made[-1]

    yield new
    for stream in made:
        stream.drop()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    threads = ThreadPoolExecutor(8, thread_name_prefix="tfos-test")
    yield threads
    # What a failed test leaves waiting ends when its stream is dropped.
    threads.shutdown(wait=False)


def send(
    stream: StreamBuffer, partition: int, batches: list[pa.RecordBatch], attempt: int = 1, end: bool = True
) -> None:
    """What a task does."""
    for batch in batches:
        stream.append(partition, attempt, batch, never)
    if end:
        total = sum(batch.num_rows for batch in batches)
        stream.end_partition(partition, attempt, rows(), total)


def values(deliveries: Iterator[NextRows]) -> list[int]:
    return [value for each in deliveries for value in each.batch.column(0).to_pylist()]


def held(future: Future[Any], seconds: float = 1.2) -> bool:
    """Whether a task is still held back after more than two looks at its state."""
    try:
        future.result(seconds)
    except TimeoutError:
        return True
    return False


def test_partitions_are_delivered_in_order_whatever_order_they_came_in(make: Make) -> None:
    stream = make()
    for partition in (2, 0, 1, 3):
        send(stream, partition, [rows(10 * partition), rows(10 * partition + 1)] if partition != 1 else [])
    stream.finish(4)
    deliveries = list(stream.deliver(never))
    assert values(iter(deliveries)) == [0, 1, 20, 21, 30, 31]
    assert [each.rows for each in deliveries if each.rows is not None] == [2, 0, 2, 2]


def test_a_task_of_the_partition_that_is_read_is_held_back_until_rows_are_taken(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stream = make(head_bytes=4 << 10)
    task = pool.submit(send, stream, 0, [block(number) for number in range(20)])
    assert held(task)
    assert stream.rows <= 4 * KILOBYTE_ROWS
    stream.finish(1)
    assert len(values(stream.deliver(never))) == 20 * KILOBYTE_ROWS
    task.result(10)


def test_later_partitions_run_ahead_as_far_as_the_budget_goes_and_no_further(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stream = make(limit=64 << 10)
    stream.append(0, 1, rows(1), never)
    send(stream, 1, [block(number) for number in range(20)])
    beyond = pool.submit(send, stream, 2, [block(number) for number in range(200)])
    assert held(beyond)
    assert stream._budget.used <= 64 << 10
    send(stream, 0, [rows(2)], attempt=2)
    stream.finish(3)
    assert len(values(stream.deliver(never))) == 1 + 220 * KILOBYTE_ROWS
    beyond.result(10)
    assert stream._budget.used == 0


def test_memory_and_disk_stay_bounded_however_long_the_partitions_are(make: Make, pool: ThreadPoolExecutor) -> None:
    stream = make(limit=32 << 10, head_bytes=4 << 10)
    tasks = [pool.submit(send, stream, partition, [block(partition)] * 100) for partition in range(4)]
    most = taken = 0
    pool.submit(lambda: [task.result(30) for task in tasks] and stream.finish(4))
    for each in stream.deliver(never):
        taken += each.batch.num_rows
        most = max(most, stream._budget.used + stream._waiting_bytes)
    assert taken == 4 * 100 * KILOBYTE_ROWS
    assert most <= (32 << 10) + (4 << 10) + 1024


def test_a_partition_that_begins_late_is_waited_for_and_the_others_let_in_rather_than_hang(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stream = make(limit=4 << 10, patience=0.1)
    late = [pool.submit(send, stream, partition, [block(partition)] * 30) for partition in (1, 2)]
    for task in late:
        task.result(20)
    send(stream, 0, [block(0)])
    stream.finish(3)
    assert values(stream.deliver(never)) == [0] * KILOBYTE_ROWS + [1] * 30 * KILOBYTE_ROWS + [2] * 30 * KILOBYTE_ROWS


@pytest.mark.parametrize("delivered", [0, 1, 2])
def test_a_second_attempt_replaces_the_first_and_rows_are_neither_repeated_nor_lost(make: Make, delivered: int) -> None:
    stream = make()
    stream.append(0, 1, rows(1, 2, 3), never)
    stream.append(0, 1, rows(4), never)
    deliveries = stream.deliver(never)
    got = [next(deliveries) for _ in range(delivered)]
    send(stream, 0, [rows(1, 2), rows(3, 4), rows(5)], attempt=2)
    with pytest.raises(Superseded):
        stream.append(0, 1, rows(5), never)
    stream.finish(1)
    assert values(iter([*got, *deliveries])) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("again", "recomputed"),
    [
        ([rows(1, 2), rows(3, 4), rows(5)], False),
        ([rows(1, 2, 3, 4, 5)], False),
        ([rows(2, 1, 3, 4, 5)], True),
        ([rows(1, 2), rows(4, 3), rows(5)], True),
        ([rows(1)], True),
    ],
)
def test_a_second_attempt_that_has_other_rows_than_were_given_is_known(
    make: Make, monkeypatch: pytest.MonkeyPatch, again: list[pa.RecordBatch], recomputed: bool
) -> None:
    monkeypatch.setattr(delivered_rows, "SAMPLE_BYTES", 1)
    stream = make()
    for batch in (rows(1, 2), rows(3, 4)):
        stream.append(0, 1, batch, never)
    deliveries = stream.deliver(never)
    got = [next(deliveries) for _ in range(2)]
    assert values(iter(got)) == [1, 2, 3, 4]
    send(stream, 0, again, attempt=2)
    stream.finish(1)
    list(deliveries)
    assert stream.recomputed == recomputed


def test_a_reader_of_rows_that_were_computed_otherwise_has_the_kernel_told_once(tmp_path: Path) -> None:
    told: list[Message] = []
    spool = Spool(str(tmp_path))
    streams = StreamBuffers(spool, told.append)
    streams.lease("l")
    streams.open("l/3", 0, 1, PLAN.schema)
    stream = streams.begin("l", 3, never)
    stream.append(0, 1, rows(1, 2), never)
    reading = streams.read("l", 3, stream, never)
    next(reading)
    send(stream, 0, [rows(7, 2), rows(3), rows(4)], attempt=2)
    stream.finish(1)
    assert values(reading) == [3, 4]
    assert told == [FeedWanted("l", 3), FeedRecomputed("l", 3)]
    spool.close()


def test_a_copy_of_a_partition_that_has_ended_is_ignored(make: Make) -> None:
    stream = make()
    send(stream, 0, [rows(1), rows(2)], attempt=1)
    send(stream, 0, [rows(1), rows(2)], attempt=2)
    stream.finish(1)
    assert values(stream.deliver(never)) == [1, 2]


def test_a_held_back_first_attempt_ends_when_the_second_comes(make: Make, pool: ThreadPoolExecutor) -> None:
    stream = make(limit=4 << 10)
    stream.append(0, 1, rows(0), never)
    first = pool.submit(send, stream, 1, [block(1)] * 50)
    assert held(first)
    stream.append(1, 2, rows(1), never)
    with pytest.raises(Superseded):
        first.result(10)


def test_rows_of_a_reader_that_has_gone_are_forgotten_and_hold_nobody_back(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stream = make(limit=4 << 10)
    tasks = [pool.submit(send, stream, partition, [block(partition)] * 50) for partition in range(3)]
    assert all(held(task, 0.3) for task in tasks)
    stream.drop()
    for task in tasks:
        task.result(10)
    assert stream._budget.used == 0
    assert list(stream.deliver(never)) == []


def test_what_fails_a_feed_ends_its_tasks_and_its_reader(make: Make, pool: ThreadPoolExecutor) -> None:
    stream = make(limit=4 << 10)
    stream.append(0, 1, rows(0), never)
    task = pool.submit(send, stream, 1, [block(1)] * 50)
    deliveries = stream.deliver(never)
    next(deliveries)
    reader = pool.submit(next, deliveries)
    assert held(task)
    stream.fail(DataError("column 'x' has nulls"))
    for waiting in (task, reader):
        with pytest.raises(DataError, match="has nulls"):
            waiting.result(10)


def test_a_reader_or_a_task_whose_caller_has_gone_waits_no_longer(make: Make, pool: ThreadPoolExecutor) -> None:
    stream, gone = make(limit=4 << 10), threading.Event()
    stream.append(0, 1, block(0), never)
    task = pool.submit(lambda: [stream.append(1, 1, block(1), gone.is_set) for _ in range(50)])
    reader = pool.submit(lambda: values(stream.deliver(gone.is_set)))
    assert held(reader)
    gone.set()
    assert reader.result(10) == [0] * KILOBYTE_ROWS
    task.result(10)


def test_a_share_that_did_not_come_whole_is_an_error(make: Make) -> None:
    stream = make()
    stream.append(0, 1, rows(1, 2), never)
    with pytest.raises(FeedError, match="got 2 rows of partition 0 instead of 3"):
        stream.end_partition(0, 1, rows(), 3)
    send(stream, 0, [rows(1)], attempt=2)
    stream.finish(2)
    with pytest.raises(FeedError, match="partition 1 of 2 is missing"):
        list(stream.deliver(never))


def test_live_rows_are_read_when_all_ranks_have_them_and_end_there(make: Make, pool: ThreadPoolExecutor) -> None:
    stream = make(live=True)
    send(stream, 0, [rows(1)])
    send(stream, 1, [rows(2)])
    send(stream, 2, [block(3)] * 20, end=False)
    deliveries = stream.deliver(never)
    first = pool.submit(next, deliveries)
    assert held(first)
    stream.confirm(2)
    assert first.result(10).batch.column(0).to_pylist() == [1]
    stream.finish(2)
    assert values(deliveries) == [2]


def test_live_rows_without_room_are_read_before_all_ranks_have_them_and_an_end_there_is_an_error(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    stream = make(live=True, limit=8 << 10)
    sending = pool.submit(send, stream, 0, [block(1)] * 50)
    deliveries = stream.deliver(never)
    assert next(deliveries).batch.num_rows == KILOBYTE_ROWS
    stream.finish(0)
    with pytest.raises(FeedError, match=r"middle of a micro-batch.*--spool-gb"):
        list(deliveries)
    stream.drop()
    sending.result(10)
