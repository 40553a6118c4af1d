"""The kernel's end of a relay: each connection of an agent there is one to the control socket here."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from tfos_magic.cluster.via_spark.carriers import Carrier
from tfos_magic.spark.failures import cause_of
from tfos_magic.worker.relay.line import END, MOST_BYTES, Line, Piece, pack, unpack

REPLY_SECONDS = 0.02
"""So long the control socket may take to answer what has come, for the answer to go along at once."""
PIECE_BYTES = 1 << 16


class Tunnel:
    """Exchanges what agents and the control socket at ``target`` say, again and again, in a thread of its own.

    ``on_loss`` is called there, with a reason, where the relay is gone. Encryption and keys are those of the agents
    and the control socket, which see no difference but time.
    """

    def __init__(self, carry: Carrier, line: Line, target: str, on_loss: Callable[[str], None]) -> None:
        where = urlsplit(target)
        self._target = (where.hostname, where.port)
        self._carry, self._line, self._on_loss = carry, line, on_loss
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[int, socket.socket] = {}
        self._number = self._newest = 0
        self._came = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tfos-tunnel", daemon=True)
        self._thread.start()

    @property
    def delay(self) -> float:
        """Seconds for which nothing could come through, while an exchange waits for Spark."""
        return time.monotonic() - self._came

    def close(self, seconds: float) -> bool:
        """End the relay; whether it was told to within so many ``seconds``."""
        self._over.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                for number, data in self._exchange(self._gather()):
                    self._hand_on(number, data)
            self._exchange([*self._gather(), (END, b"")])
        except Exception as error:  # of Spark, of a Connect server, or of the way to it
            if not self._over.is_set():
                self._on_loss(cause_of(error))
        finally:
            for number in list(self._sockets):
                self._drop(number)
            self._selector.close()

    def _exchange(self, pieces: list[Piece]) -> list[Piece]:
        """Raises :class:`ConnectionError` where the relay is gone, and what Spark raises."""
        self._number += 1
        packed = pack(pieces)
        for _ in range(2):  # the task may have lost its executor
            answer = self._carry(self._line, self._number, packed)
            if answer is not None:
                self._came = time.monotonic()
                return unpack(answer)
        raise ConnectionError("it does not answer")

    def _gather(self) -> list[Piece]:
        """What the control socket has said."""
        pieces: list[Piece] = []
        size, patience = 0, REPLY_SECONDS
        while size < MOST_BYTES and (ready := self._selector.select(patience)):
            patience = 0.0
            for key, _ in ready:
                data = self._read(key.data)
                pieces.append((key.data, data))
                size += len(data)
        return pieces

    def _read(self, number: int) -> bytes:
        try:
            data = self._sockets[number].recv(PIECE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._drop(number)
        return data

    def _hand_on(self, number: int, data: bytes) -> None:
        if number > self._newest:
            self._newest = number
            self._open(number)
        elif number in self._sockets:
            try:
                self._sockets[number].sendall(data)
            except OSError:  # it has been closed, as reading from it will tell
                return
            if not data:
                self._drop(number)

    def _open(self, number: int) -> None:
        self._sockets[number] = opened = socket.create_connection(self._target)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(opened, selectors.EVENT_READ, number)

    def _drop(self, number: int) -> None:
        closed = self._sockets.pop(number)
        self._selector.unregister(closed)
        closed.close()
