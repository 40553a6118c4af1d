"""Runs in a Spark task: takes the Arrow batches of one partition and sends every rank its rows.

Spark keeps reading while a group of rows is on its way: one group is sent, in the background, while the next is
gathered, so memory stays within two groups and one Spark batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyarrow import flight

from tfos_magic.errors import FeedError, TFOSError
from tfos_magic.node.receiver import FAIL_ACTION, PutCommand, decode_error, encode_error
from tfos_magic.records.arrow import WireConverter
from tfos_magic.records.columns import FeedPlan
from tfos_magic.records.shares import first_row

GROUP_BYTES = 16 << 20
MESSAGE_BYTES = 1 << 20
SENDERS = 4
RESULT_SCHEMA = "partition bigint, attempt bigint, rows bigint, bytes bigint, kind string, error string"


@dataclass(frozen=True)
class FeedJob:
    """What every task of a feed knows. ``endpoints`` are Flight URIs by rank; ``timeout`` (s) bounds each call."""

    feed_id: str
    plan: FeedPlan
    endpoints: tuple[str, ...]
    token: str = field(repr=False)
    timeout: float = 120.0


@dataclass(frozen=True)
class Sent:
    """What came of a partition: rows and bytes sent to all ranks, and the error that ended it, if one did."""

    rows: int
    bytes: int
    error: TFOSError | None = None


def feed_partition(job: FeedJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow``: sends one partition and gives one row of ``RESULT_SCHEMA``.

    A problem of the data is given back in that row. A lost connection is raised, for Spark to try the task again.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise FeedError("a feeder runs inside a Spark task, and there is none here")
    partition, attempt = context.partitionId(), context.taskAttemptId()
    sent = send_partition(job, partition, attempt, batches)
    kind, text = (type(sent.error).__name__, str(sent.error)) if sent.error else ("", "")
    columns = [[partition], [attempt], [sent.rows], [sent.bytes], [kind], [text]]
    names = [column.split()[0] for column in RESULT_SCHEMA.split(", ")]
    yield pa.record_batch([pa.array(column) for column in columns], names=names)


def send_partition(job: FeedJob, partition: int, attempt: int, batches: Iterable[pa.RecordBatch]) -> Sent:
    """Send the rows of a partition, row ``i`` to rank ``(partition + i) % world``.

    Returns after every rank has its rows on disk. Raises :class:`FeedError` when a rank cannot be reached.
    """
    command = PutCommand(job.feed_id, partition, attempt)
    with RankWriters(job, command) as writers:
        try:
            rows = _send_batches(job, partition, batches, writers)
        except Refused as refusal:
            writers.fail_feed(refusal.cause)
            return Sent(0, writers.bytes, refusal.cause)
    return Sent(rows, writers.bytes)


class Refused(Exception):
    """Ends a partition for a reason that trying again would not change."""

    def __init__(self, cause: TFOSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RankWriters:
    """The Flight connections of one task, one by rank, and the threads that send on them."""

    def __init__(self, job: FeedJob, command: PutCommand) -> None:
        self._job = job
        self._command = flight.FlightDescriptor.for_command(command.encode())
        headers = [(b"authorization", b"Bearer " + job.token.encode())]
        self._options = flight.FlightCallOptions(timeout=job.timeout, headers=headers)
        self._clients = [flight.connect(uri) for uri in job.endpoints]
        self._threads = ThreadPoolExecutor(min(SENDERS, len(self._clients)), thread_name_prefix="tfos-feed")
        self._sending: list[Future[None]] = []
        self.bytes = 0

    def __enter__(self) -> RankWriters:
        return self

    def __exit__(self, *exc: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for client in self._clients:
            client.close()

    def send(self, shares: list[list[pa.RecordBatch]], to_all: bool) -> None:
        """Wait for the group before, then send this one in the background; ranks without rows only if ``to_all``."""
        self.wait()
        for rank, share in enumerate(shares):
            if to_all or any(batch.num_rows for batch in share):
                self.bytes += sum(batch.nbytes for batch in share)
                self._sending.append(self._threads.submit(self._put, rank, share))

    def wait(self) -> None:
        """Return when every rank has what was sent on disk; raises what went wrong."""
        sending, self._sending = self._sending, []
        for future in sending:
            future.result()

    def fail_feed(self, reason: TFOSError) -> None:
        """Tell every rank to refuse what other tasks still send of this feed."""
        body = json.dumps(
            {"feed_id": json.loads(self._command.command)["feed_id"], "error": encode_error(reason).decode()}
        )
        for client in self._clients:
            # The reason itself goes to the driver; a rank that cannot be told only takes rows that nobody will read.
            with suppress(pa.ArrowException):
                list(client.do_action(flight.Action(FAIL_ACTION, body.encode()), self._options))

    def _put(self, rank: int, share: list[pa.RecordBatch]) -> None:
        try:
            writer, _ = self._clients[rank].do_put(self._command, share[0].schema, options=self._options)
            with writer:
                for message in _messages(share):
                    writer.write_batch(message)
        except (pa.ArrowException, OSError) as error:
            raise self._explain(rank, error) from error

    def _explain(self, rank: int, error: Exception) -> Exception:
        cause = decode_error(getattr(error, "extra_info", None))
        if cause is not None:
            return Refused(cause)
        where = f"worker {rank} at {self._job.endpoints[rank]}"
        if isinstance(error, flight.FlightUnauthenticatedError):
            return Refused(FeedError(f"{where} refused this cluster's token: restart the cluster"))
        if isinstance(error, flight.FlightTimedOutError):
            return FeedError(f"{where} did not take rows within {self._job.timeout:g} s: look at its log and its disk")
        reason = str(error).split(". Detail:")[0].split(". gRPC client debug")[0]
        return FeedError(
            f"{where} cannot be reached for the feed ({reason}): check that it runs and that its port is open"
        )


def _send_batches(job: FeedJob, partition: int, batches: Iterable[pa.RecordBatch], writers: RankWriters) -> int:
    """Gather groups of about ``GROUP_BYTES`` and send them; gives the number of rows."""
    world = len(job.endpoints)
    converter = WireConverter(job.plan)
    shares: list[list[pa.RecordBatch]] = [[] for _ in range(world)]
    rows, gathered, first = 0, 0, True
    for batch in batches:
        if not batch.num_rows:
            continue
        wire = _convert(converter, batch)
        for rank in range(world):
            shares[rank].append(_share(wire, first_row(partition, rows, rank, world), world))
        rows, gathered = rows + wire.num_rows, gathered + wire.nbytes
        if gathered >= GROUP_BYTES:
            writers.send(shares, to_all=first)
            shares, gathered, first = [[] for _ in range(world)], 0, False
    if gathered:
        # The first group goes to all ranks, so that each knows the widths even if it gets no row.
        writers.send(shares, to_all=first)
    writers.wait()
    return rows


def _convert(converter: WireConverter, batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        return converter.convert(batch)
    except TFOSError as error:
        raise Refused(error) from error


def _share(batch: pa.RecordBatch, first: int, world: int) -> pa.RecordBatch:
    return batch if world == 1 else batch.take(pa.array(np.arange(first, batch.num_rows, world)))


def _messages(share: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows of ``share`` in batches of about ``MESSAGE_BYTES``: neither crumbs nor lumps."""
    whole = share[0] if len(share) == 1 else pa.concat_batches(share)
    if not whole.num_rows:
        return
    step = max(1, MESSAGE_BYTES * whole.num_rows // max(1, whole.nbytes))
    for start in range(0, whole.num_rows, step):
        yield whole.slice(start, step)
