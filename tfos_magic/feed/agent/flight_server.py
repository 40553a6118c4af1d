"""The door of an agent for rows: an Arrow Flight server that serves whoever holds the cluster's token.

One ``DoPut`` call brings a run of rows of one task, its command naming feed, partition and attempt; gRPC's flow control
holds back feeders that are faster than the disk, or than the trainer where a feed is streamed. One ``DoGet`` call gives
the trainer its rows of one epoch of a streamed feed. By ``DoExchange`` a task sends blocks of rows to a program, and
gets its answers.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tfos_magic.columns.arrow import agree
from tfos_magic.errors import FeedError, TFOSError
from tfos_magic.feed.access import FeedAccess, socket_uri
from tfos_magic.feed.agent.flight_messages import (
    FAIL_ACTION,
    LEAVE_ACTION,
    ROWS_SCHEMA,
    PutCommand,
    RowsCall,
    block_message,
    block_of,
    decode_end,
    decode_error,
    decode_ticket,
    encode_end,
    encode_error,
)
from tfos_magic.feed.agent.row_channels import ChannelBlock, RowChannels, RowQueue
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.agent.stream_buffer import Cancelled, StreamBuffer
from tfos_magic.feed.agent.stream_buffers import StreamBuffers
from tfos_magic.feed.agent.stream_parts import NextRows
from tfos_magic.feed.agent.uncalled import UncalledConnections
from tfos_magic.processes.temporary_folder import PrivateFolder
from tfos_magic.this_host import host_id
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.transport.messages import FeedEndpoint

CLOSE_TIMEOUT = 5.0
SOCKET_FOLDER_BYTES = 96
_LOG = logging.getLogger("tfos_magic.worker")


class FeedFlightServer:
    """Serves a spool to callers that send the token of ``access``: on a port of ``host`` that the system chooses, over
    TLS and to holders of a certificate of the cluster's alone, and on a socket in a folder of this user's.

    So nobody else has a message buffered: the library takes no bounds of these. Rows of ``streams`` go there, and are
    read from there by ``DoGet`` calls.
    """

    def __init__(
        self,
        host: str,
        access: FeedAccess,
        spool: Spool,
        streams: StreamBuffers | None = None,
        channels: RowChannels | None = None,
    ) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._access = access
        self._stores = spool, streams or StreamBuffers(spool, lambda message: None), channels or RowChannels()
        self._servers: list[_Server] = []
        self._uncalled: UncalledConnections | None = None
        self._folder: PrivateFolder | None = None
        self._endpoint: FeedEndpoint | None = None

    @property
    def endpoint(self) -> FeedEndpoint:
        """Where it serves. Raises :class:`FeedError` before ``start`` and after ``close``."""
        if self._endpoint is None:
            raise FeedError("the feed receiver is not running: start it first")
        return self._endpoint

    def start(self) -> None:
        """Listen. Raises :class:`FeedError` where ``host`` is no address of this machine."""
        self._folder = _short_folder()
        path, identity = os.path.join(self._folder.path, "rows"), self._access.identity
        by_tls = {
            "tls_certificates": [(identity.certificate.encode(), identity.key.encode())],
            "verify_client": True,
            "root_certificates": identity.authority.encode(),
        }
        try:
            _silence_strangers()
            for location, options in ((f"grpc+tls://{self._host}:0", by_tls), (socket_uri(path), {})):
                guard = {"token": _TokenGuard(self._access.token)}
                self._servers.append(_Server(location, self._stores, middleware=guard, **options))
        except (pa.ArrowException, OSError) as error:
            self.close()
            raise FeedError(f"cannot receive feeds on {self._host}: {error}; check the executor's host name") from error
        by_network = self._servers[0]
        by_network.uncalled = self._uncalled = UncalledConnections(by_network.port, LogOnce(_LOG))
        uri = f"grpc+tls://{self._host}:{by_network.port}"
        self._endpoint = FeedEndpoint(uri, identity.name, path, host_id())

    def close(self) -> None:
        """Stop listening and wait, at most 5 s, for calls under way; one whose peer is gone ends by its deadline."""
        if self._uncalled is not None:
            self._uncalled.close()
        servers, self._servers, self._endpoint = self._servers, [], None
        stoppers = [
            threading.Thread(target=server.shutdown, name="tfos-feed-receiver-close", daemon=True) for server in servers
        ]
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join(max(0.0, deadline - time.monotonic()))
        if any(stopper.is_alive() for stopper in stoppers):
            _LOG.warning("the feed receiver still had a stream open %.0f s after it was closed", CLOSE_TIMEOUT)
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close()


def _short_folder() -> PrivateFolder:
    """A folder whose sockets have paths that the system takes, which are of 107 bytes at most."""
    folder = PrivateFolder("tfos-feed-")
    if len(os.fsencode(folder.path)) <= SOCKET_FOLDER_BYTES:
        return folder
    folder.close()
    return PrivateFolder("tfos-feed-", within="/tmp")


def _silence_strangers() -> None:
    """Let gRPC write no line for each caller whom it turns away, unless the user wants its words. It reads this once,
    at its start."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


class _TokenGuard(flight.ServerMiddlewareFactory):
    """Refuses calls without the token before their first message is read."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()
        self._refused = 0
        self._lock = threading.Lock()

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> None:
        given = next(iter(headers.get("authorization", [])), "")
        if not hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected):
            self._log_refusal(info.method)
            raise flight.FlightUnauthenticatedError("the cluster's token is missing or wrong")

    def _log_refusal(self, method: Any) -> None:
        with self._lock:
            self._refused += 1
            count = self._refused
        # gRPC does not tell who called before the call is accepted; powers of two keep a hostile caller from filling
        # the log.
        if count & (count - 1) == 0:
            _LOG.warning(
                "refused a %s call without this cluster's token (%d so far)", getattr(method, "name", method), count
            )


class _Server(flight.FlightServerBase):
    def __init__(self, location: str, stores: tuple[Spool, StreamBuffers, RowChannels], **options: Any) -> None:
        super().__init__(location, **options)
        self._spool, self._streams, self._channels = stores
        self.uncalled: UncalledConnections | None = None

    def _note(self, context: Any) -> None:
        if self.uncalled is not None:
            self.uncalled.called(context.peer())

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._note(context)
        with _flight_errors():
            if (call := RowsCall.decode(descriptor.command)) is not None:
                queue = self._channels.queue(call.channel, call.queue)
                for chunk in reader:
                    queue.answer(ChannelBlock(*block_of(chunk.data)))
                return
            command = PutCommand.decode(descriptor.command)
            if (stream := self._streams.get(command.feed_id)) is not None:
                _put_stream(stream, command, reader, context.is_cancelled)
            else:
                self._put_spool(command, reader)

    def _put_spool(self, command: PutCommand, reader: Any) -> None:
        task = command.feed_id, command.partition, command.attempt
        self._spool.append(*task, pa.RecordBatch.from_pylist([], schema=reader.schema))
        for chunk in reader:
            if decode_end(chunk.app_metadata) is None:
                self._spool.append(*task, chunk.data)
            else:
                self._spool.append_tail(*task, chunk.data)

    def do_get(self, context: Any, ticket: Any) -> Any:
        self._note(context)
        with _flight_errors():
            if (call := RowsCall.decode(ticket.ticket)) is not None:
                blocks = _blocks(self._channels.queue(call.channel, call.queue), context.is_cancelled)
                return flight.GeneratorStream(ROWS_SCHEMA, blocks)
            lease, epoch = decode_ticket(ticket.ticket)
            stream = self._streams.begin(lease, epoch, context.is_cancelled)
            deliveries = self._streams.read(lease, epoch, stream, context.is_cancelled)
            return flight.GeneratorStream(stream.schema, _outgoing(deliveries))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._note(context)
        with _flight_errors():
            if (call := RowsCall.decode(descriptor.command)) is None:
                raise FeedError("rows have no name of a program's queue: it is not a feed of tfos_magic")
            queue, cancelled = self._channels.queue(call.channel, call.queue), context.is_cancelled
            if not call.answers:
                _put_rows(queue, call, reader, cancelled)
                queue.await_taken(call.timeout, cancelled)
                return
            with queue.asking(call.timeout, cancelled):
                rows = _put_rows(queue, call, reader, cancelled)
                writer.begin(ROWS_SCHEMA)
                for answer in queue.answers(rows, call.timeout, cancelled):
                    writer.write_batch(block_message(answer.rows, answer.data))

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        self._note(context)
        if action.type == LEAVE_ACTION:
            self._channels.leave(action.body.to_pybytes().decode())
            return []
        if action.type != FAIL_ACTION:
            raise flight.FlightServerError(f"there is no action {action.type!r}")
        body = json.loads(action.body.to_pybytes())
        reason = decode_error(body["error"].encode())
        feed_id = str(body["feed_id"])
        if reason is None:
            return []
        if (stream := self._streams.get(feed_id)) is not None:
            stream.refuse(reason)
        else:
            self._spool.fail(feed_id, reason)
        return []


def _put_stream(stream: StreamBuffer, command: PutCommand, reader: Any, cancelled: Cancelled) -> None:
    task = command.partition, command.attempt
    agree(stream.schema, stream.schema, reader.schema)
    for chunk in reader:
        rows = decode_end(chunk.app_metadata)
        if rows is None:
            stream.append(*task, chunk.data, cancelled)
        else:
            stream.end_partition(*task, chunk.data, rows)


def _put_rows(queue: RowQueue, call: RowsCall, reader: Any, cancelled: Cancelled) -> int:
    """Put the rows of a partition, with its end; gives how many there were."""
    rows = 0
    for chunk in reader:
        block = ChannelBlock(*block_of(chunk.data), call.answers)
        rows += block.rows
        queue.put(block, call.timeout, cancelled)
    if rows:
        queue.put(ChannelBlock(0, asks=call.answers), call.timeout, cancelled)
    return rows


def _blocks(queue: RowQueue, cancelled: Cancelled) -> Iterator[Any]:
    """What a program takes off its queue; once it reads no more, nobody waits for it."""
    try:
        while (block := queue.take(cancelled)) is not None:
            yield block_message(block.rows, block.data)
    finally:
        queue.close()


def _outgoing(deliveries: Iterator[NextRows]) -> Iterator[Any]:
    with _flight_errors():
        for each in deliveries:
            yield each.batch if each.rows is None else (each.batch, encode_end(each.rows))


@contextmanager
def _flight_errors() -> Iterator[None]:
    """Let an error of ours reach the caller with its kind."""
    try:
        yield
    except TFOSError as error:
        raise flight.FlightServerError(str(error), extra_info=encode_error(error)) from error
