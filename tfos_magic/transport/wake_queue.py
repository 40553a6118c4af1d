"""What other threads have for one that waits in a poll: a queue with a file descriptor that becomes readable."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class WakeQueue(Generic[T]):
    """:meth:`put` is for every thread; ``fileno`` becomes readable when :meth:`taken` has something to give."""

    def __init__(self) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def put(self, item: T) -> None:
        """Nothing happens once the queue is closed."""
        self._items.put(item)
        with contextlib.suppress(OSError):  # full, so that it will be read anyway; or closed, so that nobody reads
            self._writer.send(b"x")

    def fileno(self) -> int:
        return self._reader.fileno()

    def taken(self) -> Iterator[T]:
        """What was put since the last time."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        while True:
            try:
                yield self._items.get_nowait()
            except Empty:
                return

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
