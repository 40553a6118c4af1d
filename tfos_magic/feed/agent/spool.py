"""Where an agent keeps the rows it was fed: one nameless file per feed, read by the trainer through mmap.

Feed once, train many times: the blocks are Arrow record batches in IPC form, so a trainer reads them where they lie.
Tasks that Spark tried again or ran twice leave blocks that no commit names; such blocks are never read.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tfos_magic.columns.arrow import agree
from tfos_magic.columns.columns import decode_schema, encode_schema
from tfos_magic.errors import FeedError, SpoolFull, TFOSError
from tfos_magic.feed.agent.append_only_file import AppendOnlyFile
from tfos_magic.feed.agent.disk_quota import DiskQuota
from tfos_magic.feed.row_assignment import tail_row, tail_size
from tfos_magic.transport.messages import SpoolHandle

ROOM_TIMEOUT = 30.0

Task = tuple[int, int]
"""A Spark partition and the attempt id of the task that sent it."""


@dataclass(frozen=True)
class RowBlock:
    """A run of one task's rows: where it lies in the file, its size in bytes, and the rows of it that count."""

    offset: int
    size: int
    rows: int
    first: int = 0


@dataclass
class _Feed:
    """What is known of one feed. Changed only under the spool's lock; blocks of a task are in row order."""

    rank: int
    world: int
    planned: pa.Schema
    file: AppendOnlyFile
    schema: pa.Schema | None = None
    blocks: dict[Task, list[RowBlock]] = field(default_factory=dict)
    tails: dict[Task, RowBlock] = field(default_factory=dict)
    failure: TFOSError | None = None
    partitions: list[tuple[int, int]] | None = None
    chosen: list[RowBlock] = field(default_factory=list)

    @property
    def rows(self) -> int:
        kept = [self.chosen] if self.partitions is not None else list(self.blocks.values())
        return sum(block.rows for blocks in kept for block in blocks)


class Spool:
    """The feeds of one agent. Thread-safe. ``directory``: by default Spark's local one, else the temporary one.

    When ``limit`` bytes, or what :class:`DiskQuota` allows, are taken, ``need_room`` is called with the feed that has
    no room and the feeds that are held; then rows wait until a feed is released or theirs is failed. Without it the
    feed fails with :class:`SpoolFull`.
    """

    def __init__(self, directory: str | None = None, limit: int | None = None) -> None:
        self.directory = directory or local_directory()
        self.budget = DiskQuota(self.directory, limit)
        self.need_room: Callable[[str, list[str]], None] | None = None
        self._feeds: dict[str, _Feed] = {}
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._releases = 0
        self._asked: set[str] = set()

    def open(self, feed_id: str, rank: int, world: int, schema: str) -> None:
        """Make room for the share of ``rank`` of a feed; ``schema`` is what :attr:`FeedPlan.schema` gives.

        A feed that is open already is dropped with all its rows. Raises :class:`FeedError` when no file can be made.
        """
        feed = _Feed(rank, world, decode_schema(schema), AppendOnlyFile(self.directory, self.budget))
        with self._lock:
            before = self._feeds.pop(feed_id, None)
            self._feeds[feed_id] = feed
        if before is not None:
            before.file.close()

    def append(self, feed_id: str, partition: int, attempt: int, batch: pa.RecordBatch) -> None:
        """Keep the next rows that a task sends, in its row order. A batch without rows only makes its schema known.

        Raises :class:`FeedError` for an unknown, committed or failed feed or a full disk, and :class:`DataError` where
        the width of a list column differs from other partitions.
        """
        feed = self._accept(feed_id, partition, batch.schema)
        if batch.num_rows:
            block = self._write(feed_id, feed, batch)
            with self._lock:
                feed.blocks.setdefault((partition, attempt), []).append(block)

    def append_tail(self, feed_id: str, partition: int, attempt: int, tail: pa.RecordBatch) -> None:
        """Keep the tail of a partition, of which at most one row is this rank's: which one, the commit will tell.

        Raises what :meth:`append` raises.
        """
        feed = self._accept(feed_id, partition, tail.schema)
        if tail.num_rows:
            block = self._write(feed_id, feed, tail)
            with self._lock:
                feed.tails[partition, attempt] = block

    def fail(self, feed_id: str, reason: TFOSError) -> None:
        """Refuse further rows of a feed with ``reason``, to end its other tasks early. Unknown feeds are ignored."""
        with self._lock:
            feed = self._feeds.get(feed_id)
            if feed is not None and feed.failure is None:
                feed.failure = reason
            self._news.notify_all()

    def commit(self, feed_id: str, partitions: Sequence[Sequence[int]], schema: str = "") -> tuple[int, int]:
        """Settle on the tasks whose rows count, ``(partition, attempt, rows of the whole partition)`` each.

        ``schema`` is the feed's, with the shapes of its lists; it may be left out where there are no lists.
        Gives rows and bytes of this rank's share. Raises :class:`FeedError` where it is not exactly what should have
        come.
        """
        ordered = sorted((int(p), int(attempt), int(rows)) for p, attempt, rows in partitions)
        with self._lock:
            feed = self._get(feed_id)
            chosen: list[RowBlock] = []
            before = 0
            for partition, attempt, rows in ordered:
                chosen += _share(feed, (partition, attempt), rows, before)
                before += tail_size(rows, feed.world)
            feed.schema = decode_schema(schema) if schema else feed.schema or feed.planned
            feed.chosen = chosen
            feed.partitions = [(partition, rows) for partition, _, rows in ordered]
            feed.file.trim()
        return sum(block.rows for block in chosen), sum(block.size for block in chosen)

    def handle(self, feed_id: str) -> SpoolHandle:
        """Give what :func:`~tfos_magic.feed.trainer.spooled_dataset.feed_dataset` needs to read a committed feed."""
        with self._lock:
            feed = self._get(feed_id)
            if feed.partitions is None or feed.schema is None:
                raise FeedError(f"feed {feed_id!r} is not complete yet: commit it first")
            return SpoolHandle(
                feed.file.path,
                feed.file.mark.hex(),
                encode_schema(feed.schema),
                [[block.offset, block.size, block.first, block.rows] for block in feed.chosen],
                [list(partition) for partition in feed.partitions],
                feed.rank,
                feed.world,
            )

    def release(self, feed_id: str) -> None:
        """Forget a feed and give its disk space back. Unknown feeds are ignored."""
        with self._lock:
            feed = self._feeds.pop(feed_id, None)
            if feed is None:
                return
            # In one go: who has no room in between must not take it that there is none to come.
            feed.file.close()
            feed.failure = feed.failure or FeedError("this feed was released while receiving rows: feed it again")
            self._releases += 1
            self._asked.clear()
            self._news.notify_all()

    def rows(self) -> dict[str, int]:
        """Rows held of every feed; until its commit those of repeated tasks are counted too."""
        with self._lock:
            return {feed_id: feed.rows for feed_id, feed in self._feeds.items()}

    @property
    def bytes(self) -> int:
        """Bytes on disk over all feeds."""
        with self._lock:
            return sum(feed.file.size for feed in self._feeds.values())

    def close(self) -> None:
        """Release all feeds."""
        with self._lock:
            feeds, self._feeds = list(self._feeds.values()), {}
        for feed in feeds:
            feed.file.close()

    def _get(self, feed_id: str) -> _Feed:
        if feed_id not in self._feeds:
            raise FeedError(f"feed {feed_id!r} is not open here: it was released, or never opened")
        return self._feeds[feed_id]

    def _accept(self, feed_id: str, partition: int, schema: pa.Schema) -> _Feed:
        with self._lock:
            feed = self._get(feed_id)
            if feed.failure is not None:
                raise type(feed.failure)(str(feed.failure))
            if feed.partitions is not None:
                raise FeedError(f"feed {feed_id!r} is complete: these rows of partition {partition} are too late")
            feed.schema = agree(feed.planned, feed.schema, schema)
        return feed

    def _write(self, feed_id: str, feed: _Feed, batch: pa.RecordBatch) -> RowBlock:
        buffer = batch.serialize()
        while True:
            releases = self._releases
            try:
                return RowBlock(feed.file.write(buffer), buffer.size, batch.num_rows)
            except SpoolFull as error:
                if self.need_room is None:
                    self.fail(feed_id, error)
                    raise
                self._await_room(feed_id, feed, releases, self.need_room)
            except FeedError as error:
                self.fail(feed_id, error)
                raise

    def _await_room(
        self, feed_id: str, feed: _Feed, releases: int, need_room: Callable[[str, list[str]], None]
    ) -> None:
        """Ask for room, once for all that wait, and return when another feed was released; raises why there is none."""
        with self._lock:
            if feed_id not in self._asked and feed.failure is None and self._releases == releases:
                self._asked.add(feed_id)
                need_room(feed_id, list(self._feeds))
            heard = self._news.wait_for(lambda: feed.failure or self._releases != releases, ROOM_TIMEOUT)
            if not heard:
                feed.failure = FeedError(
                    f"the spool is full, and the kernel did not say within {ROOM_TIMEOUT:.0f} s what to release for "
                    "this feed: run the cell again"
                )
            if feed.failure is not None:
                raise type(feed.failure)(str(feed.failure))


def _share(feed: _Feed, task: Task, rows: int, before: int) -> list[RowBlock]:
    """The blocks that hold this rank's rows of a partition of ``rows``, the tails before it having ``before`` rows."""
    blocks, tail = feed.blocks.get(task, []), feed.tails.get(task)
    dealt = sum(block.rows for block in blocks)
    left = tail.rows if tail is not None else 0
    if (dealt, left) != (rows // feed.world, tail_size(rows, feed.world)):
        raise FeedError(
            f"rank {feed.rank} holds {dealt} rows of partition {task[0]} instead of {rows // feed.world}, and {left} "
            f"of its tail instead of {tail_size(rows, feed.world)}: feed the DataFrame again"
        )
    row = tail_row(feed.rank, before, feed.world)
    return blocks if tail is None or row >= left else [*blocks, replace(tail, first=row, rows=1)]


def local_directory() -> str:
    """Where spools go unless told otherwise: Spark's own local directory, else the system's for temporary files."""
    listed = os.environ.get("LOCAL_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or ""
    return next((path for path in listed.split(",") if os.path.isdir(path)), tempfile.gettempdir())
