"""Runs in a Spark task: sends the rows of one partition to programs in trainers, and gives their answers.

Rows are of any kind that Python pickles, and travel in blocks of about ``BLOCK_BYTES``. Rows to train on are dealt out
evenly: every worker gets as many of each partition, so that workers in lockstep end together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from tfos_magic.errors import FeedError, TFOSError
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.agent.flight_messages import (
    ROWS_SCHEMA,
    RowsCall,
    block_message,
    block_of,
    decode_error,
    reason_of,
)
from tfos_magic.feed.row_blocks import decode_rows, encode_batch, encode_rows
from tfos_magic.transport.messages import FeedEndpoint

BLOCK_BYTES = 1 << 19
FIRST_ROWS, MOST_ROWS = 32, 1 << 16


@dataclass(frozen=True)
class RowsJob:
    """What every task knows: the agents' ``endpoints`` by rank, those of ``ranks`` that rows are for, and how long one
    may take no row (``timeout`` in seconds)."""

    channel: str
    queue: str
    endpoints: tuple[FeedEndpoint, ...]
    ranks: tuple[int, ...]
    access: FeedAccess
    timeout: float


def deal_rows(job: RowsJob, partition: int, rows: Iterable[Any]) -> Iterator[str]:
    """Send the rows of a partition to all ranks, as many to each. Gives the text of an error that is of no use to try
    again; returns when the programs have taken all rows, or read no more."""
    size = len(job.ranks)

    def deal(writers: Sequence[_RowWriter]) -> None:
        for block in _blocks(rows, size):
            for place, writer in enumerate(writers):
                # Each partition begins with another rank, so that short ones do not all go to the first.
                writer.send(block[(place - partition) % size :: size])

    yield from _dealt(job, deal)


def deal_batches(job: RowsJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As :func:`deal_rows`, of the Arrow batches of a DataFrame's partition, for ``mapInArrow``."""
    size, dealt = len(job.ranks), _partition()

    def deal(writers: Sequence[_RowWriter]) -> None:
        nonlocal dealt
        for batch in batches:
            for start in range(0, batch.num_rows, size * _rows_at_once(batch)):
                part = batch.slice(start, size * _rows_at_once(batch))
                for place, writer in enumerate(writers):
                    mine = part.take(np.arange((place - dealt) % size, part.num_rows, size))
                    if mine.num_rows:
                        writer.send_block(mine.num_rows, encode_batch(mine))
                dealt += part.num_rows

    yield pa.record_batch({"error": pa.array(list(_dealt(job, deal)), pa.string())})


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _rows_at_once(batch: pa.RecordBatch) -> int:
    return max(1, BLOCK_BYTES * batch.num_rows // max(1, batch.nbytes))


def _dealt(job: RowsJob, deal: Callable[[Sequence[_RowWriter]], None]) -> Iterator[str]:
    """Deal out rows; gives the text of an error that is of no use to try again."""
    try:
        with ExitStack() as stack:
            writers = [stack.enter_context(_RowWriter(job, rank, answers=False)) for rank in job.ranks]
            deal(writers)
            for writer in writers:
                writer.end()
    except TFOSError as error:
        yield str(error)


def ask_rows(job: RowsJob, partition: int, rows: Iterable[Any]) -> Iterator[Any]:
    """Send the rows of a partition to one of the ranks, and give its answers, in the order of the rows."""
    rows = iter(rows)
    first = list(islice(rows, 1))
    if not first:
        return
    with _RowWriter(job, job.ranks[partition % len(job.ranks)], answers=True) as writer:
        writer.send(first)
        for block in _blocks(rows, 1):
            writer.send(block)
        yield from writer.answers()


def _blocks(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Cut rows into blocks that are about ``BLOCK_BYTES`` for each of ``size`` ranks, judged by the block before."""
    rows, count = iter(rows), FIRST_ROWS * size
    while block := list(islice(rows, count)):
        yield block
        sample = block[:: -(-len(block) // 8)]
        each = max(1, len(encode_rows(sample)) // len(sample))
        count = size * min(MOST_ROWS, 2 * max(FIRST_ROWS, count // size), max(1, BLOCK_BYTES // each))


class _RowWriter:
    """A task's connection to the agent of a rank."""

    def __init__(self, job: RowsJob, rank: int, answers: bool) -> None:
        self._rank, self._uri = rank, job.endpoints[rank].uri
        self._client = job.access.connect(job.endpoints[rank])
        call = RowsCall(job.channel, job.queue, job.timeout, answers)
        descriptor = flight.FlightDescriptor.for_command(call.encode())
        self._writer, self._reader = self._client.do_exchange(descriptor, job.access.options())
        self._begun = False

    def __enter__(self) -> _RowWriter:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            if kind is not None:
                self._reader.cancel()
        finally:
            self._client.close()

    def send(self, rows: list[Any]) -> None:
        if rows:
            self.send_block(len(rows), encode_rows(rows))

    def send_block(self, rows: int, data: bytes) -> None:
        with self._explained():
            if not self._begun:
                self._begun = True
                self._writer.begin(ROWS_SCHEMA)
            self._writer.write_batch(block_message(rows, data))

    def end(self) -> None:
        """Return when the program has taken all rows, or reads no more."""
        for _ in self.answers():
            pass

    def answers(self) -> Iterator[Any]:
        """Give the answers to the rows that were sent."""
        if not self._begun:
            return
        with self._explained():
            self._writer.done_writing()
            while (message := self._next()) is not None:
                rows, data = block_of(message)
                yield from decode_rows(data)[-rows:]

    def _next(self) -> pa.RecordBatch | None:
        try:
            return self._reader.read_chunk().data
        except StopIteration:
            return None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Tell what went wrong with a call in our words."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            known = decode_error(getattr(error, "extra_info", None))
            reason = reason_of(error)
            raise known or FeedError(
                f"worker {self._rank} at {self._uri} cannot be reached for its rows ({reason})"
            ) from error
