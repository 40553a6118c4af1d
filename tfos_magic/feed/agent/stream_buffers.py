"""The streamed feeds of one agent: who sends to them, who reads them, and what the kernel is told about it.

A run leases a streamed feed; the ``k``-th iteration over it, on every rank, is its epoch ``k``, a :class:`StreamBuffer`
named ``lease/k``, or ``lease/k+n`` for a rank that begins an epoch again, its trainer having been replaced. The kernel
feeds an epoch when the first trainer begins to read it, and not before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

from tfos_magic.errors import FeedError
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.agent.stream_buffer import Cancelled, StreamBuffer
from tfos_magic.feed.agent.stream_parts import NextRows
from tfos_magic.transport.messages import FeedDropped, FeedRecomputed, FeedWanted, Message

OPEN_TIMEOUT = 60.0


def stream_id(lease: str, epoch: int, again: int = 0) -> str:
    """What one epoch of a leased feed is called where rows are sent; ``again`` counts how often it was begun anew."""
    return f"{lease}/{epoch}" + (f"+{again}" if again else "")


class StreamBuffers:
    """Thread-safe. What overflows memory goes to files beside ``spool``'s, within its budget; ``tell`` sends to the
    kernel, from whatever thread."""

    def __init__(self, spool: Spool, tell: Callable[[Message], None]) -> None:
        self._spool, self._tell = spool, tell
        self._streams: dict[str, StreamBuffer] = {}
        self._unread: dict[str, StreamBuffer] = {}
        self._leases: set[str] = set()
        self._changed = threading.Condition()

    def lease(self, lease: str) -> None:
        """A run is about to read a feed."""
        with self._changed:
            self._leases.add(lease)

    def open(
        self, name: str, rank: int, world: int, schema: str, *, keep_rows: bool = True, live: bool = False
    ) -> None:
        """Make room for an epoch's rows on ``rank``; without ``keep_rows`` they are taken and forgotten."""
        budget, directory = self._spool.budget, self._spool.directory
        with self._changed:
            before = self._streams.get(name)
            stream = before or StreamBuffer(schema, rank, world, directory=directory, budget=budget, live=live)
            self._streams[name] = stream
            epoch = name.partition("+")[0]
            if keep_rows:
                self._unread[epoch] = stream
            else:
                self._unread.pop(epoch, None)
            self._changed.notify_all()
        if not keep_rows:
            stream.drop()

    def get(self, name: str) -> StreamBuffer | None:
        """The stream of that name, if it is one."""
        return self._streams.get(name)

    def rows(self) -> dict[str, int]:
        """Rows that have come, by stream."""
        return {name: stream.rows for name, stream in list(self._streams.items())}

    def begin(self, lease: str, epoch: int, cancelled: Cancelled) -> StreamBuffer:
        """Ask the kernel to feed an epoch and wait until it is open. Raises :class:`FeedError` when it is not to be."""
        name = stream_id(lease, epoch)
        self._tell(FeedWanted(lease, epoch))
        with self._changed:
            opened = self._changed.wait_for(
                lambda: name in self._unread or lease not in self._leases or cancelled(), OPEN_TIMEOUT
            )
            if name in self._unread:
                return self._unread.pop(name)
        if opened:
            raise FeedError("this feed belongs to a run that has ended: run the cell again")
        raise FeedError(f"the kernel did not start to feed epoch {epoch} within {OPEN_TIMEOUT:.0f} s: run it again")

    def read(self, lease: str, epoch: int, stream: StreamBuffer, cancelled: Cancelled) -> Iterator[NextRows]:
        """Give an epoch's rows. A reader that goes before their end is reported, and what still comes is forgotten."""
        complete = False
        try:
            with closing(stream.deliver(cancelled)) as deliveries:
                yield from self._watched(lease, epoch, stream, deliveries)
            complete = not cancelled()
        finally:
            stream.drop()
            if not complete:
                self._tell(FeedDropped(lease, epoch))

    def _watched(
        self, lease: str, epoch: int, stream: StreamBuffer, deliveries: Iterator[NextRows]
    ) -> Iterator[NextRows]:
        """Tell the kernel when rows that were computed again are others than those given before."""
        told = False
        for each in deliveries:
            if stream.recomputed and not told:
                told = True
                self._tell(FeedRecomputed(lease, epoch))
            yield each

    def release(self, lease: str) -> bool:
        """Forget a lease and its streams, and end those who wait for them; False where there is no such lease."""
        with self._changed:
            known = lease in self._leases
            self._leases.discard(lease)
            gone = [name for name in self._streams if name.startswith(f"{lease}/")]
            streams = [self._streams.pop(name) for name in gone]
            for name in gone:
                self._unread.pop(name.partition("+")[0], None)
            self._changed.notify_all()
        for stream in streams:
            stream.fail(FeedError("the run that this feed belongs to has ended: run the cell again"))
            stream.drop()
        return known or bool(gone)

    def close(self) -> None:
        """Release everything."""
        for lease in {*self._leases, *(name.rpartition("/")[0] for name in list(self._streams))}:
            self.release(lease)
