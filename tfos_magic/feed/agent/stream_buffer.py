"""One epoch of a streamed feed on one rank: a bounded buffer between the tasks that send and the trainer that reads.

The trainer gets the rows in the DataFrame's order, one partition after another. Of the partition that is read, a few
megabytes wait in memory, and its task is held back beyond that. Tasks of later partitions run ahead on disk as far as
the spool's budget goes, then they are held back too, so neither memory nor disk grows with the DataFrame.

A task that Spark tries again replaces its first attempt: what the trainer has of that partition is skipped by count,
for Spark's own retries, too, take it that a partition computed twice has the same rows in the same order. Whether it
has is seen by a sample of them, and ``recomputed`` says where it has not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator

import pyarrow as pa

from tfos_magic.columns.columns import decode_schema
from tfos_magic.errors import FeedError, SpoolFull, TFOSError
from tfos_magic.feed.agent.append_only_file import AppendOnlyFile, DiskFull
from tfos_magic.feed.agent.delivered_rows import DeliveredRows
from tfos_magic.feed.agent.disk_quota import DiskQuota
from tfos_magic.feed.agent.stream_parts import NextRows, RowRun, StreamPart, Superseded

HEAD_BYTES = 8 << 20
HELD_SECONDS = 10.0
LOOK_SECONDS = 0.5

Cancelled = Callable[[], bool]
"""Whether the caller at the other end of a Flight call has gone."""


class StreamBuffer:
    """The buffer. Thread-safe; its files lie in ``directory`` and take from ``budget``.

    ``patience`` is how long tasks are held back while the partition to be read has not begun, Spark having put its task
    behind theirs: then they are let in beyond the budget, for a feed must not hang.

    Where the rows are ``live``, their end is not known and may come at any moment, and all ranks must end with the same
    row: the trainer gets those of partitions that :meth:`confirm` tells of, and of others only when there is no room to
    wait for that.
    """

    def __init__(
        self,
        schema: str,
        rank: int,
        world: int,
        *,
        directory: str,
        budget: DiskQuota,
        head_bytes: int = HEAD_BYTES,
        patience: float = HELD_SECONDS,
        live: bool = False,
    ) -> None:
        self.schema = decode_schema(schema)
        self._rank, self._world = rank, world
        self._directory, self._budget = directory, budget
        self._head_bytes, self._patience = head_bytes, patience
        self._parts: dict[int, StreamPart] = {}
        self._head = self._delivered = self._waiting_bytes = 0
        self._count: int | None = None
        self._confirmed: int | None = 0 if live else None
        self._overrun = False
        self._failure: TFOSError | None = None
        self._refusal: TFOSError | None = None
        self._dropped = False
        self._held_since = 0.0
        self._delivered_rows = DeliveredRows()
        self.recomputed = False
        self._changed = threading.Condition()
        self.rows = 0

    def append(self, partition: int, attempt: int, batch: pa.RecordBatch, cancelled: Cancelled) -> None:
        """Take the next rows of a task's share, as soon as there is room.

        Rows that nobody will read are dropped. Raises :class:`Superseded` for an attempt that another has replaced, and
        what :meth:`fail` was told.
        """
        part = self._part(partition, attempt)
        if part is None or not batch.num_rows:
            return
        chunk = self._place(partition, part, batch, cancelled)
        with self._changed:
            if chunk is None or self._dropped:
                return
            part.chunks.append(chunk)
            part.received += chunk.rows
            self.rows += chunk.rows
            self._changed.notify_all()

    def end_partition(self, partition: int, attempt: int, tail: pa.RecordBatch, rows: int) -> None:
        """Take the end of a partition of ``rows`` rows, whose share has come. Raises what :meth:`append` raises."""
        part = self._part(partition, attempt)
        if part is None:
            return
        due = rows // self._world
        if part.received != due:
            raise FeedError(
                f"rank {self._rank} got {part.received} rows of partition {partition} instead of {due}: run it again"
            )
        with self._changed:
            part.end = NextRows(tail, rows)
            self._changed.notify_all()

    def confirm(self, partitions: int) -> None:
        """Say how many partitions of live rows have been sent to all ranks."""
        with self._changed:
            self._confirmed, self._overrun = partitions, False
            self._changed.notify_all()

    def finish(self, partitions: int) -> None:
        """Say how many partitions there are, all of which have been sent."""
        with self._changed:
            if (self._head, self._delivered) > (partitions, 0):
                self._failure = FeedError(
                    "the query ended in the middle of a micro-batch for which the workers had no room, so they may "
                    "have different parts of it: allow more with --spool-gb, or make micro-batches smaller"
                )
            self._count = self._confirmed = partitions
            self._changed.notify_all()

    def refuse(self, reason: TFOSError) -> None:
        """End the tasks that send. The reader is told by :meth:`fail`, once the kernel knows of it."""
        with self._changed:
            self._refusal = self._refusal or reason
            self._changed.notify_all()

    def fail(self, reason: TFOSError) -> None:
        """End the stream for those who send and for who reads."""
        with self._changed:
            self._failure = self._failure or reason
            self._refusal = self._refusal or reason
            self._changed.notify_all()

    def drop(self) -> None:
        """Give the buffer back; from now on rows are taken and forgotten."""
        with self._changed:
            self._dropped = True
            for part in self._parts.values():
                part.forget()
            self._parts.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def deliver(self, cancelled: Cancelled) -> Generator[NextRows, None, None]:
        """Give this rank's rows, in the DataFrame's order, each partition closed by its end; waits for rows to come.

        Ends when the last partition has been given, or the reader has gone. Raises what :meth:`fail` was told.
        """
        while (delivery := self._next(cancelled)) is not None:
            yield delivery

    def _part(self, partition: int, attempt: int) -> StreamPart | None:
        """The part that a task's rows belong to, None where they are not wanted."""
        with self._changed:
            _raise(self._refusal)
            if self._dropped or partition < self._head:
                return None
            part = self._parts.get(partition)
            if part is None or part.attempt < attempt:
                if part is not None and part.end is not None:
                    return None
                part = self._replace(partition, part, attempt)
            elif part.attempt > attempt:
                raise Superseded(f"attempt {attempt} at partition {partition} has been replaced by {part.attempt}")
            return None if part.end is not None else part

    def _replace(self, partition: int, before: StreamPart | None, attempt: int) -> StreamPart:
        if before is not None:
            before.forget()
            if partition == self._head:
                self._waiting_bytes = 0
        part = StreamPart(attempt, skip=self._delivered if partition == self._head else 0)
        self._parts[partition] = part
        self._changed.notify_all()
        return part

    def _place(self, partition: int, part: StreamPart, batch: pa.RecordBatch, cancelled: Cancelled) -> RowRun | None:
        """Find room for rows in memory, where their partition is being read, or on disk; waits for it."""
        buffer: pa.Buffer | None = None
        while True:
            with self._changed:
                if not self._keeps_rows(partition, part, cancelled):
                    return None
                if partition == self._head and self._open:
                    if not self._waiting_bytes or self._waiting_bytes + batch.nbytes <= self._head_bytes:
                        self._waiting_bytes += batch.nbytes
                        return RowRun(batch.num_rows, batch.nbytes, batch)
                    self._changed.wait(LOOK_SECONDS)
                    continue
                beyond = self._out_of_patience()
            buffer = batch.serialize() if buffer is None else buffer
            if (chunk := self._spill(part, batch.num_rows, buffer, beyond)) is not None:
                return chunk
            with self._changed:
                if not self._open:
                    self._overrun = True
                    self._changed.notify_all()
                self._held_since = self._held_since or time.monotonic()
                if partition != self._head:
                    self._changed.wait(LOOK_SECONDS)

    @property
    def _open(self) -> bool:
        """Whether rows of the partition that is next may be read."""
        return self._confirmed is None or self._head < self._confirmed or self._overrun

    def _out_of_patience(self) -> bool:
        """Whether tasks have been held back for long while the partition to be read has not begun."""
        if self._head in self._parts:
            self._held_since = 0.0
        return bool(self._held_since) and time.monotonic() - self._held_since > self._patience

    def _spill(self, part: StreamPart, rows: int, buffer: pa.Buffer, beyond: bool) -> RowRun | None:
        """Write rows to the part's file; None where there is no room for them, or nobody wants them any more."""
        try:
            if part.file is None:
                part.file = AppendOnlyFile(self._directory, self._budget)
            part.file.overdraws = beyond
            return RowRun(rows, buffer.size, offset=part.file.write(buffer))
        except FeedError as error:
            with self._changed:
                gone = self._dropped or self._parts.get(self._head) is part or part not in self._parts.values()
            if gone or (isinstance(error, SpoolFull | DiskFull) and not beyond):
                return None
            raise

    def _keeps_rows(self, partition: int, part: StreamPart, cancelled: Cancelled) -> bool:
        """Whether rows are still to be kept. Raises where their sender is to end."""
        _raise(self._refusal)
        if self._dropped or cancelled():
            return False
        if self._parts.get(partition) is not part:
            raise Superseded(f"attempt {part.attempt} at partition {partition} has been replaced")
        return True

    def _next(self, cancelled: Cancelled) -> NextRows | None:
        with self._changed:
            while True:
                _raise(self._failure)
                if self._dropped or cancelled():
                    return None
                part = self._parts.get(self._head) if self._open else None
                if part is not None:
                    while part.chunks:
                        if (batch := self._take(part)) is not None:
                            return NextRows(batch)
                    if part.end is not None:
                        return self._close_partition(part, part.end)
                if self._count is not None and (self._head >= self._count or part is None):
                    if self._head == self._count:
                        return None
                    raise FeedError(f"partition {self._head} of {self._count} is missing: run the cell again")
                self._changed.wait(LOOK_SECONDS)

    def _take(self, part: StreamPart) -> pa.RecordBatch | None:
        """Take a chunk off the partition that is read; None where all of it was delivered before."""
        chunk = part.chunks.popleft()
        if chunk.batch is not None:
            batch = chunk.batch
            self._waiting_bytes -= chunk.size
        else:
            assert part.file is not None
            batch = pa.ipc.read_record_batch(part.file.read(chunk.offset, chunk.size), self.schema)
        self._changed.notify_all()
        skipped, place = min(part.skip, chunk.rows), part.taken
        part.skip -= skipped
        part.taken += chunk.rows
        if skipped and not self._delivered_rows.has(place, batch.slice(0, skipped)):
            self.recomputed = True
        if skipped == chunk.rows:
            return None
        self._delivered += chunk.rows - skipped
        rest = batch.slice(skipped)
        self._delivered_rows.add(place + skipped, rest)
        return rest

    def _close_partition(self, part: StreamPart, end: NextRows) -> NextRows:
        part.forget()
        del self._parts[self._head]
        self.recomputed = self.recomputed or part.skip > 0
        self._head += 1
        self._delivered = self._waiting_bytes = 0
        self._delivered_rows = DeliveredRows()
        self._changed.notify_all()
        return end


def _raise(reason: TFOSError | None) -> None:
    if reason is not None:
        raise type(reason)(str(reason))
