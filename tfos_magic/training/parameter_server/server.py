"""A parameter server: one thread that answers workers over one ZeroMQ socket, in the order in which they come.

The scheme is that of Li et al. (2014) and of TensorFlowOnSpark: workers push gradients, the server applies them at once
and answers with its weights. The first server also keeps the run together (see :mod:`.coordinator`).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from tfos_magic.errors import ClusterError, ProtocolError, TrainingError
from tfos_magic.training.parameter_server.array_frames import Array, pack, unpack
from tfos_magic.training.parameter_server.coordinator import CellPosition, Coordinator, Ticket
from tfos_magic.training.parameter_server.shard import Shard
from tfos_magic.training.parameter_server.trainer_keys import keys_of
from tfos_magic.transport.curve import KnownKeys, let_in, secure_server, unbounded
from tfos_magic.transport.half_open import HalfOpen
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.transport.wake_queue import WakeQueue

TICK_SECONDS = 0.5
GRACE_SECONDS = 1.0
STOP_SECONDS = 5.0
_LOST, _CLOSE = "a worker's connection is lost", "close"
_STALE = "this run is over, or this worker was dropped because its connection was lost"

log = logging.getLogger(__name__)


class ParameterServer:
    """Listens on ``address`` (``host:port``) for the workers that know ``secret``; serves until it is closed.

    The port may be held for it by a socket with SO_REUSEPORT. Raises :class:`ClusterError` when it is taken.
    """

    def __init__(self, address: str, secret: str) -> None:
        self._context = zmq.Context()
        self._authenticator = let_in(self._context, KnownKeys(worker=keys_of(secret, "worker")[0]))
        try:
            self._router = self._listen(address, secret)
        except OSError as error:
            self._authenticator.stop()
            self._context.destroy(0)
            raise ClusterError(
                f"the parameter server cannot listen on {address} ({error}): restart the cluster."
            ) from error
        self._news: WakeQueue[str] = WakeQueue()
        self._log = LogOnce(log)
        self._half_open = HalfOpen(self._router, "a parameter server", self._log, lambda: self._news.put(_LOST))
        self._connected: dict[int, bytes] = {}
        self._unreachable: dict[int, float] = {}
        self._looked = 0.0
        self._run_id = ""
        self._coordinator: Coordinator | None = None
        self._shard: Shard | None = None
        self._thread = threading.Thread(target=self._serve, name="tfos-parameter-server", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Return when it has been closed."""
        self._thread.join()

    def close(self) -> None:
        """Stop serving; waits at most ``STOP_SECONDS``."""
        if self._thread.is_alive():
            self._news.put(_CLOSE)
            self._thread.join(STOP_SECONDS)

    def _listen(self, address: str, secret: str) -> zmq.Socket[bytes]:
        host, _, port = address.rpartition(":")
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, int(port)))
            listener.listen(128)
            router = self._context.socket(zmq.ROUTER)
            secure_server(router, keys_of(secret, "server")[1])
            unbounded(router)
            router.router_mandatory = True
            router.setsockopt(zmq.USE_FD, listener.fileno())
            router.bind(f"tcp://{host}:{listener.getsockname()[1]}")
            listener.detach()
        return router

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (self._router, self._news.fileno()):
            poller.register(source, zmq.POLLIN)
        closing = False
        while not closing:
            ready: dict[Any, int] = dict(poller.poll(int(TICK_SECONDS * 1000)))
            news = set(self._news.taken())
            closing = _CLOSE in news
            try:
                self._turn(self._router in ready, bool(news))
            except Exception as error:  # whatever a worker says, the others are served
                self._log.warning(type(error).__name__, "an error while serving", trace=True)
        self._shut()

    def _turn(self, asked: bool, lost: bool) -> None:
        if asked:
            self._receive()
        if lost or time.monotonic() - self._looked > TICK_SECONDS:
            self._look_after_members()

    def _receive(self) -> None:
        peer, *frames = self._router.recv_multipart(copy=False)
        self._half_open.heard(peer)
        try:
            header, arrays = unpack(frames)
            ticket = Ticket(bytes(peer.buffer), int(header["number"]))
        except (ProtocolError, KeyError, TypeError, ValueError, OverflowError) as error:
            self._log.warning(getattr(error, "kind", "number"), f"dropped a malformed request: {error}")
            return
        try:
            self._handle(ticket, header, arrays)
        except Exception as error:  # the user's optimizer may raise anything; the worker that asked is told
            kind = f"handling, {type(error).__name__}"
            self._log.warning(kind, f"an error while handling {str(header.get('kind'))[:80]}", trace=True)
            self._send(ticket, {"status": "error", "text": f"{type(error).__name__}: {error}"})

    def _handle(self, ticket: Ticket, header: dict[str, Any], arrays: list[Array]) -> None:
        rank = int(header["rank"])
        match header["kind"]:
            case "hello":
                self._greet(rank, ticket.peer)
                self._send(ticket, {"status": "ok"})
            case "open":
                self._open(rank, ticket, header)
            case "setup":
                self._set_up(header, arrays)
                self._send(ticket, {"status": "ok"})
            case _ if header["run"] != self._run_id or not self._knows(rank, ticket.peer, header["kind"]):
                self._send(ticket, {"status": "lost", "text": _STALE})
            case "push":
                self._push(rank, ticket, header, arrays)
            case "pull":
                self._send(ticket, {"status": "ok"}, self._trained.everything() if header["state"] else self._weights())
            case kind:
                self._coordinate(kind, rank, ticket, header, arrays)

    def _coordinate(self, kind: str, rank: int, ticket: Ticket, header: dict[str, Any], arrays: list[Array]) -> None:
        coordinator = self._coordinator
        if coordinator is None:
            raise TrainingError("only the first parameter server coordinates a run")
        if kind == "sum":
            coordinator.contribute(rank, CellPosition(*header["place"]), arrays, ticket)
        elif kind == "join":
            coordinator.join(rank, int(header["fit"]), ticket)
        elif kind == "leave":
            coordinator.leave(rank, header["status"])
            self._send(ticket, {"status": "ok", "furthest": coordinator.furthest})
        else:
            raise TrainingError(f"a parameter server has no request {kind!r}")

    def _greet(self, rank: int, peer: bytes) -> None:
        """A trainer is up. Where it stands in for one that was a member, that one is gone."""
        before, self._connected[rank] = self._connected.get(rank), peer
        if self._coordinator is not None and before is not None and self._coordinator.is_member(rank, before):
            self._coordinator.drop(rank, "its trainer was restarted")

    def _open(self, rank: int, ticket: Ticket, header: dict[str, Any]) -> None:
        """The first to open a run makes it, with all that are connected; tells each whether it is in it."""
        if header["run"] != self._run_id:
            self._run_id, self._shard = header["run"], None
            self._unreachable.clear()
            members = {r: peer for r, peer in self._connected.items() if r < header["size"]}
            self._coordinator = Coordinator(members, int(header["max_staleness"]), self._send, self._answer_push)
        assert self._coordinator is not None
        self._send(ticket, {"status": "ok", "member": self._coordinator.is_member(rank, ticket.peer)})

    def _set_up(self, header: dict[str, Any], arrays: list[Array]) -> None:
        self._run_id = header["run"]
        self._shard = Shard(arrays[0].tobytes(), arrays[1:])
        if self._coordinator is not None:
            self._coordinator.begin_fit()

    def _knows(self, rank: int, peer: bytes, kind: str) -> bool:
        """Whether the peer is in the run; servers but the first let in whoever knows the run."""
        coordinator = self._coordinator
        return coordinator is None or kind in ("join", "leave") or coordinator.is_member(rank, peer)

    @property
    def _trained(self) -> Shard:
        if self._shard is None:
            raise TrainingError("this parameter server has no weights yet")
        return self._shard

    def _weights(self) -> list[Array]:
        return self._trained.weights()

    def _push(self, rank: int, ticket: Ticket, header: dict[str, Any], arrays: list[Array]) -> None:
        if header["rate"] is not None:
            self._trained.set_learning_rate(header["rate"])
        self._trained.push(tuple(header["dense"]), tuple(header["sparse"]), arrays)
        if self._coordinator is None:
            self._answer_push(ticket)
        else:
            self._coordinator.push(rank, header["votes"], ticket)

    def _answer_push(self, ticket: Ticket) -> None:
        votes = self._coordinator.votes if self._coordinator is not None else [0.0, 0.0]
        header = {"status": "ok", "votes": votes, "iterations": self._trained.iterations}
        self._send(ticket, header, self._weights())

    def _send(self, ticket: Ticket, header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        self._reaches(ticket.peer, pack({**header, "number": ticket.number}, arrays))

    def _reaches(self, peer: bytes, frames: Sequence[Any]) -> bool:
        """Send, unless the peer is gone; the library knows at once when a process has ended."""
        try:
            self._router.send_multipart([peer, *frames], copy=False)
            return True
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False

    def _look_after_members(self) -> None:
        """Drop members that have been out of reach for ``GRACE_SECONDS``."""
        now = self._looked = time.monotonic()
        coordinator = self._coordinator
        for rank, peer in list(coordinator.members.items()) if coordinator is not None else []:
            if self._reaches(peer, [b""]):
                self._unreachable.pop(rank, None)
            elif now - self._unreachable.setdefault(rank, now) > GRACE_SECONDS and coordinator is not None:
                del self._unreachable[rank]
                coordinator.drop(rank, "its process ended or its host is unreachable")

    def _shut(self) -> None:
        self._half_open.close()
        self._router.close(0)
        self._authenticator.stop()
        self._context.term()
        self._news.close()
