"""The line between kernel and relay: pieces of connections, brought and fetched by whoever Spark runs for that."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import zmq

from tfos_magic.transport.curve import secure_client, unbounded
from tfos_magic.transport.multipart import cut, joined

ANSWER_SECONDS, SEND_SECONDS, BATCH_SECONDS = 6.0, 1.0, 0.02
PIECE_BYTES, MOST_BYTES = 1 << 16, 4 << 20
"""Of one read, and of one exchange. What is more waits in the connections themselves."""
END = 0
"""The number by which the kernel ends the relay."""

Piece = tuple[int, bytes]
"""The number of a connection and bytes of it. Without bytes it begins, where it is new, and ends otherwise."""
_HEAD = struct.Struct("!QI")


def pack(pieces: Iterable[Piece]) -> bytes:
    """The pieces as one."""
    return b"".join(part for number, data in pieces for part in (_HEAD.pack(number, len(data)), data))


def unpack(packed: bytes) -> list[Piece]:
    """The pieces that were packed."""
    pieces, at = [], 0
    while at < len(packed):
        number, size = _HEAD.unpack_from(packed, at)
        at += _HEAD.size + size
        pieces.append((number, packed[at - size : at]))
    return pieces


class Connections:
    """Numbered connections, each made by ``begin``: those that come to a ``listener``, and those of which another end
    tells. For one thread."""

    def __init__(self, begin: Callable[[], socket.socket], listener: socket.socket | None = None) -> None:
        self._begin, self._newest = begin, END
        self._open: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ, END)

    def read(self, seconds: float) -> list[Piece]:
        """What has come, and comes soon after the first, for which it waits so many ``seconds``."""
        pieces: list[Piece] = []
        if self._selector.select(seconds):
            time.sleep(BATCH_SECONDS)
        while sum(len(data) for _, data in pieces) < MOST_BYTES and (ready := self._selector.select(0)):
            for key, _ in ready:
                if key.data != END:
                    pieces.append((key.data, self._received(key.data)))
                elif self._made(self._newest + 1):
                    pieces.append((self._newest, b""))
                else:
                    return pieces
        return pieces

    def write(self, number: int, data: bytes) -> None:
        """Hand a piece on. A connection that takes nothing for a while ends, and its agent dials again."""
        if number > self._newest:
            self._made(number)
        elif number in self._open:
            try:
                self._open[number].sendall(data)
            except OSError:
                data = b""
            if not data:
                self._drop(number)

    def close(self) -> None:
        for number in list(self._open):
            self._drop(number)
        self._selector.close()

    def _made(self, number: int) -> bool:
        try:
            connection = self._begin()
        except OSError:  # it went away again, or there are too many
            return False
        connection.settimeout(SEND_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ, number)
        self._newest, self._open[number] = number, connection
        return True

    def _received(self, number: int) -> bytes:
        try:
            data = self._open[number].recv(PIECE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._drop(number)
        return data

    def _drop(self, number: int) -> None:
        closed = self._open.pop(number)
        self._selector.unregister(closed)
        closed.close()


@dataclass(frozen=True)
class Line:
    """Where a relay is asked, its public key, and the keys of the one kernel that it listens to."""

    endpoint: str
    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


def exchange(line: Line, number: int, packed: bytes) -> bytes | None:
    """Bring pieces to the relay and fetch those that it has by then, or soon; None where it does not answer.

    Whoever does the same again, for Spark may run a task twice, changes nothing, and gets the same: exchanges are
    numbered, from 1 on.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as relay:
        secure_client(relay, line.server_public, line.public, line.secret)
        unbounded(relay)
        refused = relay.get_monitor_socket(zmq.EVENT_CONNECT_RETRIED)
        relay.connect(line.endpoint)
        relay.send_multipart([number.to_bytes(8, "big"), *cut([packed])])
        poller = zmq.Poller()
        for each in (relay, refused):
            poller.register(each, zmq.POLLIN)
        heard = relay in dict(poller.poll(int(ANSWER_SECONDS * 1000)))
        relay.disable_monitor()
        refused.close(0)
        answer: bytes | None = joined(relay.recv_multipart())[0] if heard else None
        return answer
