"""The relay: a process beside a Spark executor that agents dial in the kernel's place.

It hands the bytes of their connections on as they are, each way, whenever the kernel asks by way of Spark. What they
say, and by which keys they know one another, is between kernel and agents; the relay has a key for its line to the
kernel alone. It ends when told to, with its executor, and when the kernel has not asked for a while.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import zmq

from tfos_magic.errors import ClusterError
from tfos_magic.processes.child_process import name_process
from tfos_magic.spark.liveness import ExecutorLiveness
from tfos_magic.transport.curve import KnownKeys, let_in, secure_server, unbounded
from tfos_magic.transport.half_open import HalfOpen
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.transport.multipart import cut, joined
from tfos_magic.worker.host import find_place
from tfos_magic.worker.relay.line import END, Connections, pack, unpack

SCHEMA, NAME = "said string", "tfos-relay"
log = logging.getLogger("tfos_magic.worker")

WAIT_SECONDS, DISCARD = 0.5, 9
"""So long it waits for something to tell."""


class Relay:
    """Listens at two ports of ``host``: ``endpoint`` is for agents, ``line`` for who has the key ``kernel``."""

    def __init__(self, host: str, secret: bytes, kernel: bytes, patience: float, executor: ExecutorLiveness) -> None:
        self._patience, self._executor = patience, executor
        self._context = zmq.Context()
        self._authenticator = let_in(self._context, KnownKeys(kernel=kernel))
        self._router = self._context.socket(zmq.ROUTER)
        secure_server(self._router, secret)
        unbounded(self._router, linger=1)
        self._router.bind(f"tcp://{host}:*")
        self._half_open = HalfOpen(self._router, "the relay", LogOnce(log))
        self._listener = socket.create_server((host, 0), backlog=1024)
        self._listener.settimeout(0)
        self.line: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.endpoint = f"tcp://{host}:{self._listener.getsockname()[1]}"
        self._connections = Connections(lambda: self._listener.accept()[0], self._listener)
        self._number, self._answer = 0, b""
        self._ending = False

    def serve(self) -> None:
        """Answer the kernel until the end. Agents wait in their connections meanwhile."""
        heard = time.monotonic()
        while not (self._ending or self._executor.cut or time.monotonic() - heard > self._patience):
            if self._router.poll(int(WAIT_SECONDS * 1000)):
                self._serve_one()
                heard = time.monotonic()
        self._connections.close()
        self._listener.close()
        self._half_open.close()
        self._router.close()
        self._authenticator.stop()
        self._context.term()

    def _serve_one(self) -> None:
        """What is asked again gets the same answer; what is older has lost its asker."""
        asker = self._router.recv(copy=False)
        head, *frames = self._router.recv_multipart()
        self._half_open.heard(asker)
        number = int.from_bytes(head, "big")
        if number == self._number + 1:
            self._number, self._answer = number, self._exchanged(joined(frames)[0])
        if number == self._number:
            self._router.send_multipart([asker.bytes, *cut([self._answer])])

    def _exchanged(self, packed: bytes) -> bytes:
        for number, data in unpack(packed):
            self._ending |= number == END
            self._connections.write(number, data)
        return pack(self._connections.read(0 if self._ending else WAIT_SECONDS))


def start_relay(driver: str, secret: bytes, public: bytes, patience: float) -> str:
    """Start a relay beside the executor of this task, for who has the key ``public``; gives its two endpoints.

    ``driver`` is the address of the kernel's host as executors would have it, if they reached it.
    """
    from pyspark import TaskContext

    from tfos_magic.worker.detached_agent import detach

    host = find_place(TaskContext.get(), f"tcp://{driver}:{DISCARD}", 0).host

    def live(executor: ExecutorLiveness, told: int) -> None:
        name_process(NAME)
        relay = Relay(host, secret, public, patience, executor)
        with open(told, "w", encoding="utf-8") as said:
            said.write(f"{relay.endpoint} {relay.line}")
        relay.serve()

    with open(detach(live), encoding="utf-8") as said:
        if place := said.read():
            return place
    raise ClusterError(f"the relay on {host} has ended: see Spark's log there")


def why_unreached(kernel: str) -> str:
    """Why this executor does not reach the endpoint ``kernel``; empty where it does."""
    from tfos_magic.worker.probe import tried

    return ", ".join(tried(kernel.removeprefix("tcp://")))


@dataclass(frozen=True)
class Task:
    """The function of a Spark job: it calls ``work``, and the one row has what that says."""

    work: Callable[[], str]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"said": [self.work()]})
