"""The relay: a process beside a Spark executor that agents dial in the kernel's place.

It hands the bytes of their connections on as they are, each way, whenever the kernel asks by way of Spark. What they
say, and by which keys they know one another, is between kernel and agents; the relay has a key for its line to the
kernel alone. It ends when told to, with its executor, and when the kernel has not asked for a while.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import zmq

from tfos_magic.spark.liveness import ExecutorLiveness
from tfos_magic.transport.curve import KnownKeys, let_in, secure_server, unbounded
from tfos_magic.transport.frames import cut, joined
from tfos_magic.transport.half_open import HalfOpen
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.worker.relay.line import BATCH_SECONDS, END, MOST_BYTES, WAIT_SECONDS, Piece, pack, unpack

log = logging.getLogger("tfos_magic.worker")

PIECE_BYTES, IDLE_SECONDS = 1 << 16, 0.5


@dataclass
class _Agent:
    """A connection that an agent made, or a stranger, and what is still to be written to it."""

    socket: socket.socket
    unsent: bytearray = field(default_factory=bytearray)
    closing: bool = False


class Relay:
    """Listens at two ports of ``host``: ``endpoint`` is for agents, ``line`` for who has the kernel's key."""

    def __init__(self, host: str, secret: bytes, kernel: bytes, patience: float, lifeline: ExecutorLiveness) -> None:
        self._patience, self._lifeline = patience, lifeline
        self._context = zmq.Context()
        self._authenticator = let_in(self._context, KnownKeys(kernel=kernel))
        self._router = self._context.socket(zmq.ROUTER)
        secure_server(self._router, secret)
        unbounded(self._router, linger=1)
        self._router.bind(f"tcp://{host}:*")
        self._half_open = HalfOpen(self._router, "the relay", LogOnce(log))
        self._listener = socket.create_server((host, 0), backlog=1024)
        self._listener.setblocking(False)
        self.line: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.endpoint = f"tcp://{host}:{self._listener.getsockname()[1]}"
        self._poller = zmq.Poller()
        for source in (self._router, self._listener.fileno()):
            self._poller.register(source, zmq.POLLIN)
        self._agents: dict[int, _Agent] = {}
        self._numbers: dict[int, int] = {}  # by descriptor
        self._count, self._most = 0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._news: list[Piece] = []
        self._size, self._reading = 0, True
        self._number, self._asker, self._answer = 0, b"", None
        self._asked = self._heard = time.monotonic()
        self._ending = False

    _answer: list[Any] | None

    def serve(self) -> None:
        """Hand on until the end."""
        while not (self._ending and not self._asker):
            if self._lifeline.cut or time.monotonic() - self._heard > self._patience:
                break
            self._turn()
        self._close()

    def _turn(self) -> None:
        wait = BATCH_SECONDS if self._asker else IDLE_SECONDS
        ready: dict[Any, int] = dict(self._poller.poll(int(wait * 1000)))
        if self._listener.fileno() in ready:
            self._accept()
        for descriptor in ready.keys() & self._numbers.keys():
            self._attend(self._numbers[descriptor], ready[descriptor])
        if self._router in ready:
            self._take()
        if self._asker:
            self._tell()

    def _accept(self) -> None:
        try:
            connection = self._listener.accept()[0]
        except OSError:  # it went away again
            return
        if len(self._agents) >= self._most:
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._count += 1
        self._agents[self._count] = agent = _Agent(connection)
        self._numbers[connection.fileno()] = self._count
        self._watch(agent)
        self._news.append((self._count, b""))

    def _attend(self, number: int, event: int) -> None:
        agent = self._agents[number]
        if event & zmq.POLLOUT:
            self._write(number, b"")
        if event & ~zmq.POLLOUT and number in self._agents:
            self._read(number, agent)

    def _read(self, number: int, agent: _Agent) -> None:
        try:
            data = agent.socket.recv(PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._news.append((number, data))
        self._size += len(data)
        if not data:
            self._drop(number)
        if self._size > MOST_BYTES:
            self._read_on(False)

    def _write(self, number: int, data: bytes) -> None:
        agent = self._agents[number]
        agent.unsent += data
        try:
            while agent.unsent:
                del agent.unsent[: agent.socket.send(agent.unsent)]
        except BlockingIOError:
            pass
        except OSError:  # it is gone, as reading from it will tell
            agent.unsent.clear()
        if agent.closing and not agent.unsent:
            self._drop(number)
        else:
            self._watch(agent)

    def _take(self) -> None:
        """Take what the kernel brings, and note that it asks. A question that comes again gets the same answer."""
        asker = self._router.recv(copy=False)
        frames = self._router.recv_multipart()
        self._half_open.heard(asker)
        number, self._heard = int.from_bytes(frames[0], "big"), time.monotonic()
        if number == self._number + 1:
            self._number, self._answer, self._asked = number, None, self._heard
            for piece in unpack(joined(frames[1:])[0]):
                self._hand_on(*piece)
        if number == self._number:
            self._asker = asker.bytes

    def _hand_on(self, number: int, data: bytes) -> None:
        if number == END:
            self._ending = True
        elif number in self._agents:
            self._agents[number].closing = not data
            self._write(number, data)

    def _tell(self) -> None:
        waits = 0.0 if self._ending else BATCH_SECONDS if self._news else WAIT_SECONDS
        if self._answer is None:
            if time.monotonic() - self._asked < waits:
                return
            self._answer = cut([pack(self._news)])
            self._news, self._size = [], 0
            self._read_on(True)
        self._router.send_multipart([self._asker, *self._answer])
        self._asker = b""

    def _read_on(self, reading: bool) -> None:
        if reading != self._reading:
            self._reading = reading
            for agent in self._agents.values():
                self._watch(agent)

    def _watch(self, agent: _Agent) -> None:
        wanted = (zmq.POLLIN if self._reading else 0) | (zmq.POLLOUT if agent.unsent else 0)
        self._poller.register(agent.socket.fileno(), wanted)

    def _drop(self, number: int) -> None:
        connection = self._agents.pop(number).socket
        del self._numbers[connection.fileno()]
        self._poller.register(connection.fileno(), 0)
        connection.close()

    def _close(self) -> None:
        self._listener.close()
        for number in list(self._agents):
            self._drop(number)
        self._half_open.close()
        self._router.close()
        self._authenticator.stop()
        self._context.term()
