"""Streamed feeds, driver side: each epoch is a Spark job of its own, begun when the first worker asks for its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from tfos_magic.columns.columns import FeedPlan
from tfos_magic.errors import FeedError, TFOSError, UsageError
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.agent.stream_buffers import stream_id
from tfos_magic.feed.driver.answers import Answers
from tfos_magic.feed.driver.feed_job import FeedReport, feed_dataframe
from tfos_magic.feed.driver.stream_epochs import EpochLease, StreamEpoch, check_neglect
from tfos_magic.feed.driver.streaming_query import LiveQuery, StreamingSource
from tfos_magic.spark.session import Session, cancel_tag, is_stopped, job_tag
from tfos_magic.transport.messages import (
    ConfirmStream,
    EndStream,
    FeedDropped,
    FeedEndpoint,
    FeedOpened,
    FeedRecomputed,
    FeedWanted,
    Message,
    OpenStream,
    ReleaseFeed,
    StreamHandle,
)

HELD_TIMEOUT = 24 * 3600.0
JOIN_SECONDS = 5.0
_ADVICE = "Training on them cannot be reproduced. Write the rows to Parquet and feed those."


class StreamedFeeds:
    """The leases of the run that goes on. ``tell(rank, message)`` sends to an agent. Thread-safe.

    A rank whose trainer has died in the middle of a run, and was replaced, gets the rows of its epochs by itself: the
    others have gone on.
    """

    def __init__(
        self,
        spark: Session,
        answers: Answers,
        access: FeedAccess,
        tell: Callable[[int, Message], None],
        endpoints: Sequence[FeedEndpoint],
    ) -> None:
        self._spark, self._answers, self._access, self._tell = spark, answers, access, tell
        self._endpoints = list(endpoints)
        self.failure: TFOSError | None = None
        self._leases: dict[str, EpochLease] = {}
        self._queries: dict[str, LiveQuery] = {}
        self._news: SimpleQueue[str] = SimpleQueue()
        self._lock = threading.RLock()

    def move(self, endpoints: Sequence[FeedEndpoint]) -> None:
        """The agents were replaced by those at ``endpoints``."""
        self.end()
        self._endpoints = list(endpoints)

    def lease(self, name: str, df: Any, plan: FeedPlan, schema: str, ranks: Collection[int]) -> StreamHandle:
        """Let ``ranks`` read ``df`` until :meth:`end`; gives what their agents need to know of it."""
        with self._lock:
            made = EpochLease(uuid4().hex[:12], name, df, plan, schema, frozenset(ranks), self._queries.get(name))
            self._leases[made.lease] = made
        return StreamHandle(made.lease, schema, len(self._endpoints), live=made.query is not None)

    def start_query(self, name: str, frame: StreamingSource, plan: FeedPlan) -> LiveQuery:
        """Start the query of a streaming DataFrame, for the lease of that name to come."""
        query = LiveQuery(name, frame, plan, lambda partitions, error: self._query_ended(name, partitions, error))
        with self._lock:
            self._queries[name] = query
        return query

    def end_queries(self) -> None:
        """Stop the queries; who waits for their rows hears that these are all."""
        with self._lock:
            queries, self._queries = self._queries, {}
        for name, query in queries.items():
            query.stop()
            partitions, _ = query.outcome or (0, None)
            self._query_ended(name, partitions, None)

    def note(self, rank: int, message: FeedWanted | FeedDropped | FeedRecomputed) -> None:
        """Take what an agent says of its trainer; of leases that have ended nothing is wanted."""
        with self._lock:
            lease = self._leases.get(message.lease)
            if lease is None:
                return
            match message:
                case FeedWanted():
                    self._want(lease, rank, message.epoch)
                case FeedDropped():
                    self._drop(lease, rank, message.epoch)
                case FeedRecomputed():
                    self._news.put(
                        f"{lease.name}: a Spark task was retried and gave different rows than worker {rank} had "
                        f"trained on, in pass {message.epoch + 1} over it. {_ADVICE}"
                    )

    def lose(self, rank: int) -> None:
        """The trainer of ``rank`` has died: nobody waits for it, and one in its place gets its rows by itself."""
        with self._lock:
            for lease in self._leases.values():
                self._set_apart(lease, rank)

    def check(self) -> list[str]:
        """Give what the user should know since the last time. Raises :class:`FeedError` where workers wait for rows
        that another one, which has not asked, holds back."""
        with self._lock:
            for lease in self._leases.values():
                for number, epochs in lease.epochs.items():
                    for epoch in epochs:
                        check_neglect(lease, number, epoch)
        return [self._news.get() for _ in range(self._news.qsize())]

    def end(self) -> None:
        """Cancel the jobs of all leases, and only them, and give back what the agents hold."""
        with self._lock:
            leases, self._leases = list(self._leases.values()), {}
            self.failure = None
        running = [epoch for lease in leases for epochs in lease.epochs.values() for epoch in epochs if epoch.running]
        for epoch in running:
            epoch.cancelled = True
        for lease in leases:
            self._release(lease)
        self.end_queries()
        for epoch in running:
            self._cancel(epoch)
        for epoch in running:
            assert epoch.thread is not None
            epoch.thread.join(JOIN_SECONDS)

    def _want(self, lease: EpochLease, rank: int, number: int) -> None:
        epochs = lease.epochs.setdefault(number, [])
        epoch = next((epoch for epoch in epochs if rank in epoch.ranks and rank not in epoch.asked), None)
        if epoch is None:
            alone = any(rank in epoch.ranks for epoch in epochs) or rank not in lease.ranks
            if alone:
                self._set_apart(lease, rank)
            ranks = frozenset({rank}) if alone else lease.ranks
            epoch = StreamEpoch(stream_id(lease.lease, number, len(epochs)), ranks)
            epochs.append(epoch)
            self._begin(lease, epoch)
        epoch.asked.add(rank)

    def _set_apart(self, lease: EpochLease, rank: int) -> None:
        """Let nobody wait any more for a rank that has to begin anew."""
        lease.ranks -= {rank}
        for epochs in lease.epochs.values():
            for epoch in epochs:
                if rank in epoch.ranks and rank not in epoch.dropped:
                    epoch.dropped.add(rank)
                    self._tell(rank, self._opening(lease, epoch, rank, keep_rows=False))

    def _drop(self, lease: EpochLease, rank: int, number: int) -> None:
        for epoch in reversed(lease.epochs.get(number, [])):
            if rank in epoch.ranks:
                epoch.dropped.add(rank)
                if epoch.dropped >= epoch.ranks and epoch.running:
                    epoch.cancelled = True
                    # In a thread of its own, for Spark may take its time and the agents' messages come through here.
                    threading.Thread(target=self._cancel, args=(epoch,), name="tfos-stream-cancel", daemon=True).start()
                return

    def _begin(self, lease: EpochLease, epoch: StreamEpoch) -> None:
        epoch.thread = threading.Thread(
            target=self._feed if lease.query is None else self._let_through,
            args=(lease, epoch),
            name=f"tfos-stream-{epoch.stream}",
            daemon=True,
        )
        epoch.thread.start()

    def _feed(self, lease: EpochLease, epoch: StreamEpoch) -> None:
        """Run the job of an epoch, in its thread."""
        try:
            self._open(lease, epoch)
            with job_tag(self._spark, epoch.tag):
                report = feed_dataframe(
                    lease.df,
                    lease.plan,
                    feed_id=epoch.stream,
                    endpoints=self._endpoints,
                    access=self._access,
                    timeout=HELD_TIMEOUT,
                    schema=lease.schema,
                    ranks=sorted(epoch.ranks),
                )
            if how := lease.compare(report.digests):
                self._news.put(f"{lease.name}: {how} came from Spark in an epoch after the first. {_ADVICE}")
            self._tell_end(epoch, EndStream(epoch.stream, len(report.partitions)))
        except Exception as error:  # told to the workers, who raise it where they read
            if not epoch.cancelled:
                self._fail(lease, epoch, error)

    def _let_through(self, lease: EpochLease, epoch: StreamEpoch) -> None:
        """Open the way for the micro-batches of a query."""
        query = lease.query
        assert query is not None
        try:
            self._open(lease, epoch)
            if sum(map(len, lease.epochs.values())) > 1:
                raise UsageError(
                    f"{lease.name!r} is a streaming DataFrame, whose rows come only once: read it once, with "
                    "epochs=1, and set how much you want to see with steps_per_epoch"
                )
        except Exception as error:  # told to the workers, who raise it where they read
            self._fail(lease, epoch, error)
            return
        query.open(lambda batch, schema, first: self._send_batch(lease, epoch, batch, first))
        if query.outcome is not None:
            self._tell_query_end(epoch, *query.outcome)

    def _send_batch(self, lease: EpochLease, epoch: StreamEpoch, batch: Any, first: int) -> FeedReport:
        report = feed_dataframe(
            batch,
            lease.plan,
            feed_id=epoch.stream,
            endpoints=self._endpoints,
            access=self._access,
            timeout=HELD_TIMEOUT,
            schema=lease.schema,
            first_partition=first,
            ranks=sorted(epoch.ranks),
        )
        for rank in epoch.ranks:
            self._tell(rank, ConfirmStream(epoch.stream, first + len(report.partitions)))
        return report

    def _query_ended(self, name: str, partitions: int, error: TFOSError | None) -> None:
        """Tell the workers that a query gives no more rows, now or when they begin to read it."""
        with self._lock:
            leases = [lease for lease in self._leases.values() if lease.name == name]
            epochs = [epoch for lease in leases for epochs in lease.epochs.values() for epoch in epochs]
        for epoch in epochs:
            self._tell_query_end(epoch, partitions, error)

    def _tell_query_end(self, epoch: StreamEpoch, partitions: int, error: TFOSError | None) -> None:
        self.failure = self.failure or error
        kind, text = (type(error).__name__, str(error)) if error is not None else ("", "")
        self._tell_end(epoch, EndStream(epoch.stream, partitions, kind, text))

    def _release(self, lease: EpochLease) -> None:
        for rank in range(len(self._endpoints)):
            self._tell(rank, ReleaseFeed(lease.lease))

    def _open(self, lease: EpochLease, epoch: StreamEpoch) -> None:
        with self._answers.expected(epoch.stream):
            for rank in epoch.ranks:
                self._tell(rank, self._opening(lease, epoch, rank))
            self._answers.await_all(epoch.stream, FeedOpened, epoch.ranks)

    def _fail(self, lease: EpochLease, epoch: StreamEpoch, error: Exception) -> None:
        known = error if isinstance(error, TFOSError) else FeedError(f"the feed of {lease.name!r} failed: {error}")
        with self._lock:
            self.failure = self.failure or known
        self._tell_end(epoch, EndStream(epoch.stream, 0, type(known).__name__, str(known)))

    def _opening(self, lease: EpochLease, epoch: StreamEpoch, rank: int, keep_rows: bool = True) -> OpenStream:
        return OpenStream(
            epoch.stream, rank, len(self._endpoints), lease.schema, keep_rows, live=lease.query is not None
        )

    def _tell_end(self, epoch: StreamEpoch, message: EndStream) -> None:
        for rank in epoch.ranks:
            self._tell(rank, message)

    def _cancel(self, epoch: StreamEpoch) -> None:
        if not is_stopped(self._spark):
            cancel_tag(self._spark, epoch.tag)
