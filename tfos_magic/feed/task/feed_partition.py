"""Runs in a Spark task: takes the Arrow batches of one partition and sends every rank its rows.

The rows are dealt out as :mod:`tfos_magic.feed.row_assignment` says; the last message to every rank brings the
partition's tail and says how many rows the partition had.

Spark keeps reading while a group of rows is on its way: one group is sent, in the background, while the next is
gathered, so memory stays within two groups and one Spark batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import flight

from tfos_magic.columns.arrow import WireConverter
from tfos_magic.columns.columns import FeedPlan, decode_schema
from tfos_magic.columns.digest import RowsDigest, digest_of
from tfos_magic.columns.list_lengths import ListLengths
from tfos_magic.errors import FeedError, TFOSError
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.agent.flight_messages import (
    FAIL_ACTION,
    PutCommand,
    decode_error,
    encode_end,
    encode_error,
    reason_of,
)
from tfos_magic.feed.agent.stream_parts import Superseded
from tfos_magic.feed.task.row_partitioner import RowPartitioner, Shares
from tfos_magic.transport.messages import FeedEndpoint

GROUP_BYTES = 16 << 20
MESSAGE_BYTES = 1 << 20
SENDERS = 4
MEASURE_SCHEMA = "rows bigint, widths string"
RESULT_SCHEMA = (
    "partition bigint, attempt bigint, rows bigint, bytes bigint, kind string, error string, widths string, "
    "digest bigint, row_order bigint"
)


@dataclass(frozen=True)
class FeedJob:
    """What every task of a feed knows: the agents' ``endpoints`` by rank; ``timeout`` (s) bounds each call.

    A ``schema`` that is settled, base64 of its IPC form, says that rows go to streams, which want to hear of partitions
    without rows as well. Spark's partition 0 is the feed's ``first_partition``. Where ``ranks`` are given, the rows of
    others are not sent. Each ``world`` of the ranks, one after another, share out all rows; 0: all of them do.
    """

    feed_id: str
    plan: FeedPlan
    endpoints: tuple[FeedEndpoint, ...]
    access: FeedAccess
    timeout: float = 120.0
    schema: str = ""
    first_partition: int = 0
    ranks: tuple[int, ...] = ()
    world: int = 0

    @property
    def shares(self) -> int:
        """Among how many ranks rows are shared out."""
        return self.world or len(self.endpoints)


@dataclass(frozen=True)
class Sent:
    """What came of a partition: rows and bytes sent to all ranks, and the error that ended it, if one did.

    ``widths`` are the lengths of lists seen, ``digest`` is that of the rows.
    """

    rows: int
    bytes: int
    error: TFOSError | None = None
    widths: ListLengths = field(default_factory=ListLengths)
    digest: RowsDigest = field(default_factory=RowsDigest)


def feed_partition(job: FeedJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow``: sends one partition and gives one row of ``RESULT_SCHEMA``.

    A problem of the data is given back in that row. A lost connection is raised, for Spark to try the task again.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise FeedError("a feeder must run inside a Spark task; there is none here")
    partition, attempt = context.partitionId(), context.taskAttemptId()
    sent = send_partition(job, partition, attempt, batches)
    kind, text = (type(sent.error).__name__, str(sent.error)) if sent.error else ("", "")
    columns = [[partition], [attempt], [sent.rows], [sent.bytes], [kind], [text]]
    columns += [[sent.widths.to_json()], [sent.digest.content], [sent.digest.order]]
    names = [column.split()[0] for column in RESULT_SCHEMA.split(", ")]
    yield pa.record_batch([pa.array(column) for column in columns], names=names)


def measure_partition(plan: FeedPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow`` that sends nothing: gives a partition's rows and the lengths of its lists."""
    converter = WireConverter(plan)
    rows = sum(converter.convert(batch).num_rows for batch in batches if batch.num_rows)
    yield pa.record_batch({"rows": pa.array([rows]), "widths": pa.array([converter.widths.to_json()])})


def send_partition(job: FeedJob, partition: int, attempt: int, batches: Iterable[pa.RecordBatch]) -> Sent:
    """Send the rows of a partition to the ranks they are dealt to, and its tail to all.

    Returns after every agent has its rows: on disk, or in memory of a feed that is streamed. Raises
    :class:`FeedError` when a rank cannot be reached.
    """
    command = PutCommand(job.feed_id, job.first_partition + partition, attempt)
    converter = WireConverter(job.plan, decode_schema(job.schema) if job.schema else None)
    with RankWriters(job, command) as writers:
        try:
            rows, digest = _send_batches(job, converter, batches, writers)
        except PartitionRefused as refusal:
            writers.fail_feed(refusal.cause)
            return Sent(0, writers.bytes, refusal.cause, converter.widths)
    return Sent(rows, writers.bytes, widths=converter.widths, digest=digest)


@dataclass(frozen=True)
class End:
    """The end of a partition: its rows in all, and those of them that no whole group holds."""

    rows: int
    tail: pa.RecordBatch


class PartitionRefused(Exception):
    """Ends a partition for a reason that trying again would not change."""

    def __init__(self, cause: TFOSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RankWriters:
    """The Flight connections of one task, one by rank, and the threads that send on them."""

    def __init__(self, job: FeedJob, command: PutCommand) -> None:
        self._job = job
        self._command = flight.FlightDescriptor.for_command(command.encode())
        self._options = job.access.options(job.timeout)
        ranks = job.ranks or range(len(job.endpoints))
        self._clients = {rank: job.access.connect(job.endpoints[rank]) for rank in ranks}
        self._threads = ThreadPoolExecutor(min(SENDERS, len(self._clients)), thread_name_prefix="tfos-feed")
        self._sending: list[Future[None]] = []
        self.bytes = 0

    def __enter__(self) -> RankWriters:
        return self

    def __exit__(self, *exc: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    def send(self, shares: Shares, end: End | None = None) -> None:
        """Wait for the group before, then send this one in the background; with ``end`` it is the last one."""
        self.wait()
        for rank in self._clients:
            share = shares[rank % len(shares)]
            if not share and end is None:
                continue
            self.bytes += sum(batch.nbytes for batch in share) + (end.tail.nbytes if end else 0)
            self._sending.append(self._threads.submit(self._put, rank, share, end))

    def wait(self) -> None:
        """Return when every agent has taken what was sent; raises what went wrong."""
        sending, self._sending = self._sending, []
        for future in sending:
            future.result()

    def fail_feed(self, reason: TFOSError) -> None:
        """Tell every rank to refuse what other tasks still send of this feed."""
        body = json.dumps(
            {"feed_id": json.loads(self._command.command)["feed_id"], "error": encode_error(reason).decode()}
        )
        for client in self._clients.values():
            # The reason itself goes to the driver; a rank that cannot be told only takes rows that nobody will read.
            with suppress(pa.ArrowException):
                list(client.do_action(flight.Action(FAIL_ACTION, body.encode()), self._options))

    def _put(self, rank: int, share: list[pa.RecordBatch], end: End | None) -> None:
        schema = share[0].schema if end is None else end.tail.schema
        try:
            writer, _ = self._clients[rank].do_put(self._command, schema, options=self._options)
            with writer:
                for message in _messages(share):
                    writer.write_batch(message)
                if end is not None:
                    writer.write_with_metadata(end.tail, encode_end(end.rows))
        except (pa.ArrowException, OSError) as error:
            raise self._explain(rank, error) from error

    def _explain(self, rank: int, error: Exception) -> Exception:
        cause = decode_error(getattr(error, "extra_info", None))
        if cause is not None:
            return cause if isinstance(cause, Superseded) else PartitionRefused(cause)
        where = f"worker {rank} at {self._job.endpoints[rank].uri}"
        if isinstance(error, flight.FlightUnauthenticatedError):
            return PartitionRefused(FeedError(f"{where} refused this cluster's token: restart the cluster"))
        if isinstance(error, flight.FlightTimedOutError):
            return FeedError(f"{where} did not take rows within {self._job.timeout:g} s: check its log and its disk")
        reason = reason_of(error)
        return FeedError(
            f"{where} cannot be reached for the feed ({reason}): check that it runs and that its port is open"
        )


def _send_batches(
    job: FeedJob, converter: WireConverter, batches: Iterable[pa.RecordBatch], writers: RankWriters
) -> tuple[int, RowsDigest]:
    """Gather groups of about ``GROUP_BYTES`` and send them; gives the number of rows and their digest."""
    dealer = RowPartitioner(job.shares)
    gathered, digest = 0, RowsDigest()
    for batch in batches:
        if not batch.num_rows:
            continue
        wire = _convert(converter, batch)
        dealer.deal(wire)
        digest += digest_of(wire)
        gathered += wire.nbytes
        if gathered >= GROUP_BYTES:
            writers.send(dealer.take())
            gathered = 0
    if dealer.rows or job.schema:
        writers.send(dealer.take(), End(dealer.rows, dealer.tail(converter.schema)))
    writers.wait()
    return dealer.rows, digest


def _convert(converter: WireConverter, batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        return converter.convert(batch)
    except TFOSError as error:
        raise PartitionRefused(error) from error


def _messages(share: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows of ``share`` in batches of about ``MESSAGE_BYTES``: neither crumbs, which are joined, nor lumps."""
    crumbs: list[pa.RecordBatch] = []
    size = 0
    for batch in share:
        crumbs.append(batch)
        size += batch.nbytes
        if size >= MESSAGE_BYTES:
            yield from _cut(crumbs, size)
            crumbs, size = [], 0
    yield from _cut(crumbs, size)


def _cut(crumbs: list[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    if not crumbs:
        return
    whole = crumbs[0] if len(crumbs) == 1 else pa.concat_batches(crumbs)
    step = -(-whole.num_rows // max(1, round(size / MESSAGE_BYTES)))
    for start in range(0, whole.num_rows, max(1, step)):
        yield whole.slice(start, step)
