"""A worker's connections to the parameter servers: requests, each with one answer."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from tfos_magic.errors import RunStopped, TrainingError
from tfos_magic.training.allreduce import PeerLost
from tfos_magic.training.parameter_server.array_frames import Array, nbytes, pack, unpack
from tfos_magic.training.parameter_server.trainer_keys import keys_of
from tfos_magic.transport.curve import beat, secure_client, unbounded
from tfos_magic.transport.wake_queue import WakeQueue

Request = tuple[Mapping[str, Any], Sequence[Array]]
Reply = tuple[dict[str, Any], list[Array]]


class ServerGroup:
    """Rank ``rank`` of ``size`` among the workers, connected to the servers at ``addresses`` for its process's life.

    ``timeout`` is the number of seconds that one answer may take. ``sent`` counts bytes. ``failure`` says why the
    connections cannot be used any more, ``lost`` why the run cannot. Raises :class:`PeerLost` when a server does not
    answer within ``start_seconds``.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        addresses: Sequence[str],
        secret: str,
        *,
        timeout: float = 300.0,
        start_seconds: float = 60.0,
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.addresses = list(addresses)
        self.sent = 0
        self.waited = 0.0
        self.failure = ""
        self.lost = ""
        self._number = 0
        self._calls: dict[int, Callable[..., list[Array]]] = {}
        # A graph keeps its function for ever, so there is this one for all graphs.
        self.function = self.call
        self._lock = threading.Lock()
        self._context = zmq.Context()
        self._aborted: WakeQueue[None] = WakeQueue()
        self._poller = zmq.Poller()
        self._poller.register(self._aborted.fileno(), zmq.POLLIN)
        # Told apart from a trainer that had this rank before.
        name = f"{rank}-{secrets.token_hex(8)}".encode()
        self._sockets = [self._dial(address, name, secret) for address in self.addresses]
        self._monitors = [s.get_monitor_socket(zmq.EVENT_DISCONNECTED) for s in self._sockets]
        for source in (*self._sockets, *self._monitors):
            self._poller.register(source, zmq.POLLIN)
        try:
            self.ask({"kind": "hello"}, "the parameter servers to start", seconds=start_seconds)
        except BaseException:
            self.close()
            raise

    def ask(self, header: Mapping[str, Any], what: str, **limits: float) -> list[Reply]:
        """Ask all servers the same."""
        return self.exchange({server: (header, ()) for server in range(len(self._sockets))}, what, **limits)

    def ask_first(self, header: Mapping[str, Any], what: str, arrays: Sequence[Array] = ()) -> Reply:
        """Ask the server that keeps the run together."""
        return self.exchange({0: (header, arrays)}, what)[0]

    def exchange(self, requests: Mapping[int, Request], what: str, *, seconds: float | None = None) -> list[Reply]:
        """Send a request to each of some servers and wait for all answers, which come in the order of ``requests``.

        Raises :class:`PeerLost` when a server is gone, late (after ``seconds``) or says that the run is lost,
        :class:`RunStopped` when another rank stopped the run, :class:`TrainingError` for what a server raised.
        """
        with self._lock:
            if self.failure:
                raise PeerLost(self.failure)
            self._number += 1
            for server, (header, arrays) in requests.items():
                frames = pack({**header, "rank": self.rank, "number": self._number}, arrays)
                self.sent += nbytes(frames)
                self._sockets[server].send_multipart(frames, copy=False)
            begun = time.monotonic()
            replies = self._await(set(requests), what, self.timeout if seconds is None else seconds)
            self.waited += time.monotonic() - begun
        return [self._checked(replies[server]) for server in requests]

    def call(self, key: Any, *arrays: Array) -> list[Array]:
        """Make the call that was registered as ``key``."""
        return self._calls[int(key)](*arrays)

    def register(self, call: Callable[..., list[Array]]) -> int:
        """Give the key by which graphs reach ``call`` until :meth:`forget_calls`."""
        key = len(self._calls)
        self._calls[key] = call
        return key

    def forget_calls(self) -> None:
        self._calls.clear()

    def abort(self, reason: str) -> None:
        """Make what waits fail now, and whatever comes. Any thread may call this."""
        self.failure = self.failure or reason
        self._aborted.put(None)

    def close(self) -> None:
        """Leave; for the end of the process."""
        self.failure = self.failure or f"rank {self.rank} left"
        for monitor, dealer in zip(self._monitors, self._sockets, strict=True):
            dealer.disable_monitor()
            monitor.close(0)
            dealer.close(0)
        self._context.term()
        self._aborted.close()

    def _dial(self, address: str, name: bytes, secret: str) -> zmq.Socket[bytes]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.routing_id = name
        secure_client(dealer, keys_of(secret, "server")[0], *keys_of(secret, "worker"))
        unbounded(dealer)
        beat(dealer, seconds=1, patience=10, peers_patience=10)
        dealer.connect(f"tcp://{address}")
        return dealer

    def _await(self, servers: set[int], what: str, seconds: float) -> dict[int, Reply]:
        deadline = time.monotonic() + seconds
        replies: dict[int, Reply] = {}
        while servers - replies.keys():
            ready: dict[Any, int] = dict(self._poller.poll(max(0, int((deadline - time.monotonic()) * 1000))))
            if not ready:
                late = ", ".join(self.addresses[server] for server in sorted(servers - replies.keys()))
                self._fail(f"no answer within {seconds:g} s from the parameter server at {late}, waiting for {what}")
            if self._aborted.fileno() in ready:
                self._fail(self.failure or "asked to stop")
            for server, (dealer, monitor) in enumerate(zip(self._sockets, self._monitors, strict=True)):
                if monitor in ready:
                    self._fail(f"the parameter server at {self.addresses[server]} ended or is unreachable")
                if dealer in ready and (reply := self._take(dealer)) is not None:
                    replies[server] = reply
        return replies

    def _take(self, dealer: zmq.Socket[bytes]) -> Reply | None:
        """The answer to the current request; None for a sign of life, and for the answer to one given up."""
        frames = dealer.recv_multipart(copy=False)
        if len(frames) == 1 and not len(frames[0]):
            return None
        header, arrays = unpack(frames)
        return (header, arrays) if header["number"] == self._number else None

    def _checked(self, reply: Reply) -> Reply:
        match reply[0]["status"]:
            case "ok":
                return reply
            case "stopped":
                raise RunStopped("the run was stopped on another worker. Run the cell to start again.")
            case "error":
                raise TrainingError(f"a parameter server failed: {reply[0]['text']}")
            case _:
                self.lost = str(reply[0]["text"])
                raise PeerLost(self.lost)

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        raise PeerLost(self.failure)
