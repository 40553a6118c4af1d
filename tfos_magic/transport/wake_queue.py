"""Messages that other threads of the agent have for the kernel, handed to the one thread that may send them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from queue import Empty, SimpleQueue

from tfos_magic.transport.messages import Message


class WakeQueue:
    """:meth:`put` is for every thread; ``fileno`` becomes readable when :meth:`messages` has something to give."""

    def __init__(self) -> None:
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def put(self, message: Message) -> None:
        self._messages.put(message)
        with contextlib.suppress(OSError):  # full, so that it will be read anyway; or closed, so that nobody reads
            self._writer.send(b"x")

    def fileno(self) -> int:
        return self._reader.fileno()

    def messages(self) -> Iterator[Message]:
        """What was put since the last time."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        while True:
            try:
                yield self._messages.get_nowait()
            except Empty:
                return

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
