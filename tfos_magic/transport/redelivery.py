"""Messages that survive a broken connection: numbered, kept until acknowledged, sent again, each taken once, in order.

ZeroMQ reconnects by itself but drops what was in flight. So each side numbers what it sends and acknowledges what it
took with whatever it sends next; after a reconnect each sends again what the other has not acknowledged, and what
comes twice or too early is dropped (go-back-N, as in any account of sliding windows). What is large is cut into frames
on its way. No sockets here.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

from tfos_magic.errors import ProtocolError
from tfos_magic.transport.multipart import cut, joined

_ENVELOPE = struct.Struct("!QQ")

Frames = list[bytes]


class Redelivery:
    """One side of a conversation with one peer. Not thread-safe: it belongs to the thread of its socket."""

    def __init__(self) -> None:
        self._sent = 0
        self._taken = 0
        self._kept: deque[tuple[int, Frames]] = deque()
        self.unacknowledged = 0
        """Bytes that were sent and may have to be sent again."""

    def numbered(self, frames: Frames) -> list[Any]:
        """Put the envelope before a message that must arrive, and keep it until it has."""
        self._sent += 1
        self._kept.append((self._sent, frames))
        self.unacknowledged += _size(frames)
        return self._sealed(self._sent, frames)

    def passing(self, frames: Frames) -> list[Any]:
        """Put the envelope before a message whose loss does no harm, for another one like it will follow."""
        return self._sealed(0, frames)

    def take(self, frames: Frames) -> Frames | None:
        """Open the envelope: the message, or None where it is to be dropped. Raises :class:`ProtocolError`."""
        if not frames or len(frames[0]) != _ENVELOPE.size:
            raise ProtocolError("a message came without its envelope")
        number, acknowledged = _ENVELOPE.unpack(frames[0])
        while self._kept and self._kept[0][0] <= acknowledged:
            self.unacknowledged -= _size(self._kept.popleft()[1])
        if number not in (0, self._taken + 1):
            return None
        self._taken = number or self._taken
        return joined(frames[1:])

    def again(self) -> list[list[Any]]:
        """Everything that has not been acknowledged, in order, to be sent again after a reconnect."""
        return [self._sealed(number, frames) for number, frames in self._kept]

    def _sealed(self, number: int, frames: Frames) -> list[Any]:
        return [_ENVELOPE.pack(number, self._taken), *cut(frames)]


def _size(frames: Frames) -> int:
    return sum(map(len, frames))
