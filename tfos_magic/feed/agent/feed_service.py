"""The agent's service for feeds: the kernel's orders are carried out in spool and streams, and what these say is
told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfos_magic.errors import FeedError, SpoolFull
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.agent.disk_quota import GIGABYTE
from tfos_magic.feed.agent.flight_messages import error_of
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.row_channels import RowChannels
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.agent.stream_buffers import StreamBuffers
from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.transport.messages import (
    AS_WRITTEN,
    CommitFeed,
    ConfirmStream,
    EndStream,
    FeedAttached,
    FeedOpened,
    FeedUse,
    Message,
    NeedRoom,
    OpenFeed,
    OpenStream,
    RefuseFeed,
    ReleaseFeed,
    RowsHandle,
    RunCell,
)


class FeedService:
    """Owns spool, streams and receiver of an agent on ``host``. ``tell`` sends to the kernel, from any thread."""

    def __init__(self, config: AgentConfig, host: str, tell: Callable[[Message], None]) -> None:
        limit = None if config.spool_gb is None else int(config.spool_gb * GIGABYTE)
        self.spool = Spool(config.spool_dir, limit)
        self.spool.need_room = lambda feed_id, held: tell(NeedRoom(feed_id, held))
        self.streams = StreamBuffers(self.spool, tell)
        self.channels = RowChannels()
        self.receiver = FeedFlightServer(
            host, FeedAccess(config.feed_token, config.identity), self.spool, self.streams, self.channels
        )
        self._token, self._tell = config.feed_token, tell

    def obey(self, message: Message) -> None:
        """Carry out an order about feeds; other messages are none of its business."""
        match message:
            case OpenFeed():
                self._answer_opened(
                    message.feed_id,
                    lambda: self.spool.open(message.feed_id, message.rank, message.world, message.schema),
                )
            case OpenStream():
                self._answer_opened(message.stream, lambda: self._open_stream(message))
            case CommitFeed():
                self._commit(message)
            case RefuseFeed():
                self.spool.fail(message.feed_id, SpoolFull(message.reason))
            case EndStream():
                self._end(message)
            case ConfirmStream():
                if (stream := self.streams.get(message.stream)) is not None:
                    stream.confirm(message.partitions)
            case ReleaseFeed():
                if not (self.streams.release(message.feed_id) or self.channels.release(message.feed_id)):
                    self.spool.release(message.feed_id)

    def prepared(self, cell: RunCell, rank: int) -> RunCell:
        """The cell with all that the trainer of ``rank`` needs to read its feeds: for its private link alone."""
        rows = None
        if cell.strategy == AS_WRITTEN:
            self.channels.open(cell.run_id)
            rows = RowsHandle(cell.run_id, self.receiver.endpoint.socket, self._token)
        feeds = {name: self._prepared(use, rank) for name, use in cell.feeds.items()}
        return dataclasses.replace(cell, feeds=feeds, rows=rows)

    def rows(self) -> dict[str, int]:
        """Rows that have come, by feed and by stream."""
        return {**self.spool.rows(), **self.streams.rows()}

    def close(self) -> None:
        self.streams.close()
        self.channels.close()
        self.receiver.close()
        self.spool.close()

    def _prepared(self, use: FeedUse, rank: int) -> FeedUse:
        if use.stream is None:
            return dataclasses.replace(use, spool=self.spool.handle(use.feed_id))
        self.streams.lease(use.stream.lease)
        stream = dataclasses.replace(use.stream, rank=rank, socket=self.receiver.endpoint.socket, token=self._token)
        return dataclasses.replace(use, stream=stream)

    def _open_stream(self, order: OpenStream) -> None:
        self.streams.open(
            order.stream, order.rank, order.world, order.schema, keep_rows=order.keep_rows, live=order.live
        )

    def _answer_opened(self, feed_id: str, open_it: Callable[[], None]) -> None:
        try:
            open_it()
            self._tell(FeedOpened(feed_id))
        except FeedError as error:
            self._tell(FeedOpened(feed_id, str(error)))

    def _commit(self, message: CommitFeed) -> None:
        try:
            rows, size = self.spool.commit(message.feed_id, message.partitions, message.schema)
            self._tell(FeedAttached(message.feed_id, rows, size))
        except FeedError as error:
            self._tell(FeedAttached(message.feed_id, 0, 0, str(error)))

    def _end(self, message: EndStream) -> None:
        reason = error_of(message.kind, message.error) if message.error else None
        stream = self.streams.get(message.stream)
        if stream is None:
            self.channels.end(message.stream, reason)
            return
        if reason is not None:
            stream.fail(reason)
        else:
            stream.finish(message.partitions)
