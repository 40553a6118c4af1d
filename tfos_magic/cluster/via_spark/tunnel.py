"""The kernel's end of a relay: each connection of an agent there is one to the control socket here."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from tfos_magic.spark.failures import cause_of
from tfos_magic.worker.relay.line import BATCH_SECONDS, END, Connections, Line, Piece, pack, unpack

Carrier = Callable[[Line, int, bytes], bytes | None]
"""Has one exchange done; None where the relay does not answer. Raises what Spark raises."""


class Tunnel:
    """Exchanges what agents and the control socket at ``target`` say, again and again, in a thread of its own.

    ``on_loss`` is called there, with a reason, where the relay is gone. Encryption and keys are those of the agents
    and the control socket, which see no difference but time.
    """

    def __init__(self, carry: Carrier, line: Line, target: str, on_loss: Callable[[str], None]) -> None:
        where: Any = urlsplit(target)
        self._carry, self._line, self._on_loss = carry, line, on_loss
        self._connections = Connections(lambda: socket.create_connection((where.hostname, where.port)))
        self._number = self._done = 0
        self._came = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tfos-tunnel", daemon=True)
        self._thread.start()

    @property
    def delay(self) -> float:
        """Seconds for which nothing came through, while an exchange waits for Spark."""
        return time.monotonic() - self._came

    def answers(self, seconds: float) -> bool:
        """Whether an exchange that begins from now on comes to its end within so many ``seconds``."""
        asked, deadline = self._number + 1, time.monotonic() + seconds
        while self._done < asked and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(BATCH_SECONDS)
        return self._done >= asked

    def close(self, seconds: float) -> bool:
        """End the relay; whether it was told to within so many ``seconds``."""
        self._over.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                for number, data in self._exchange(self._connections.read(BATCH_SECONDS)):
                    self._connections.write(number, data)
            self._exchange([*self._connections.read(0), (END, b"")])
        except Exception as error:  # of Spark, of a Connect server, or of the way to it
            if not self._over.is_set():
                self._on_loss(cause_of(error))
        finally:
            self._connections.close()

    def _exchange(self, pieces: list[Piece]) -> list[Piece]:
        self._number += 1
        packed = pack(pieces)
        for _ in range(2):  # the task may have lost its executor
            answer = self._carry(self._line, self._number, packed)
            if answer is not None:
                self._came, self._done = time.monotonic(), self._number
                return unpack(answer)
        raise ConnectionError("it does not answer")
