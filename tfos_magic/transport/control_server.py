"""The control socket beside the kernel: one ZeroMQ ROUTER that agents dial, closed to anyone without the key.

Keys are made per cluster and never leave the process but in the closure of the agents' Spark job. The handshake is
CURVE (http://curvezmq.org); a peer that fails it is dropped by the library before any byte of it is read as a message.
An agent keeps its routing id when its connection breaks and comes back, and nothing that was said meanwhile is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import zmq

from tfos_magic.errors import ClusterError, ProtocolError
from tfos_magic.transport.curve import KnownKeys, allow_slow_handshakes, let_in, secure_server, unbounded
from tfos_magic.transport.half_open import HalfOpen
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.transport.messages import Heard, Heartbeat, Message, Reconnected, Shutdown, decode, encode
from tfos_magic.transport.redelivery import Redelivery
from tfos_magic.transport.secret import SecretBytes
from tfos_magic.transport.wake_queue import WakeQueue

log = logging.getLogger("tfos_magic.cluster")

TOGETHER = 50
"""Messages that are taken one after another before what is to be sent has its turn."""


@dataclass(frozen=True)
class AgentKeys:
    """What an agent needs to be heard: the server's public key and a key pair of its own."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


class ControlServer:
    """Listens on one address, gives each authenticated message to ``handler(peer, message)`` in its own thread.

    ``peer`` is the agent's routing id. ``send`` may be called from any thread; a message to a peer whose connection is
    broken is sent again when it is back. One that does not come back is lost, which is reported by other means.
    Handshakes may take longer where agents come by a relay.
    """

    def __init__(
        self, host: str, port: int, handler: Callable[[bytes, Message], None], *, relayed: bool = False
    ) -> None:
        self._handler = handler
        self._outbox: WakeQueue[tuple[bytes, list[bytes], bool] | None] = WakeQueue()
        self._deliveries: dict[bytes, Redelivery] = {}
        self._context = zmq.Context()
        self.log = LogOnce(log)
        server_public, server_secret = zmq.curve_keypair()
        self.public, self._secret = server_public, SecretBytes(server_secret)
        self._known = KnownKeys()
        self._authenticator = let_in(self._context, self._known)
        self._router = self._bind(host, port, relayed)
        self._half_open = HalfOpen(self._router, "the control socket", self.log)
        self.endpoint: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, name="tfos-control", daemon=True)
        self._thread.start()

    def _bind(self, host: str, port: int, relayed: bool) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        secure_server(router, self._secret)
        if relayed:
            allow_slow_handshakes(router)
        unbounded(router, linger=1)
        # An agent that comes back before its broken connection was noticed takes over from it.
        router.router_handover = True
        try:
            router.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            router.close()
            self._authenticator.stop()
            raise ClusterError(
                f"The control socket cannot listen on {host}:{port or 'any port'} ({error}). Set the address that the "
                "executors reach with %config TFOS.driver_host, and a free port with %config TFOS.control_port."
            ) from None
        return router

    def issue(self, job: str) -> AgentKeys:
        """Make the keys of the agent of a Spark job, who is heard by that name alone."""
        return AgentKeys(self.public, *self._known.issue(job))

    def send(self, peer: bytes, message: Message) -> None:
        """Queue ``message`` for ``peer``. A ``Shutdown`` is not sent again: who misses it misses the kernel, too."""
        self._outbox.put((peer, encode(message), not isinstance(message, Shutdown)))

    def forget(self, peers: Iterable[bytes]) -> None:
        """Keep nothing any more for peers that will not come back."""
        for peer in peers:
            self._outbox.put((peer, [], False))

    def close(self) -> None:
        """Send what is queued, then free the port. Waits at most 5 s."""
        if not self._thread.is_alive():
            return
        self._outbox.put(None)
        self._thread.join(5)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for source in (self._router, self._outbox.fileno()):
            poller.register(source, zmq.POLLIN)
        open_ = True
        while open_:
            ready: dict[Any, int] = dict(poller.poll())
            if self._router in ready:
                self._receive_some()
            if self._outbox.fileno() in ready:
                open_ = self._flush()
        self._shut()

    def _receive_some(self) -> None:
        """Take what has come, without a look at the outbox between any two, but for so many."""
        with suppress(zmq.Again):
            for _ in range(TOGETHER):
                self._receive()

    def _receive(self) -> None:
        """Take a message; raises :class:`zmq.Again` where there is none."""
        peer = self._router.recv(zmq.NOBLOCK, copy=False)
        frames = self._router.recv_multipart() if peer.more else []
        self._half_open.heard(peer)
        if self._known.name_of(str(peer.get("User-Id")).encode()) != job_of(peer.bytes):
            self.log.warning("borrowed name", "dropped a message of an agent that called itself by another's name")
            return
        try:
            self._take(peer.bytes, frames)
        except ProtocolError as error:
            self.log.warning(error.kind, f"dropped a malformed message from an agent: {error}")

    def _take(self, peer: bytes, frames: list[bytes]) -> None:
        """Open what ``peer`` sent and act on it. Raises :class:`ProtocolError` for what cannot be read."""
        delivery = self._deliveries.setdefault(peer, Redelivery())
        taken = delivery.take(frames)
        if taken is None:
            return
        message = decode(taken)
        if isinstance(message, Reconnected):
            for each in delivery.again():
                self._transmit(peer, each)
            return
        if isinstance(message, Heartbeat):
            self._transmit(peer, delivery.passing(encode(Heard())))
        self._hand_over(peer, message)

    def _hand_over(self, peer: bytes, message: Message) -> None:
        try:
            self._handler(peer, message)
        except Exception as error:  # whatever a message leads to, the others are heard
            what = type(message).__name__
            self.log.warning(f"{what}, {type(error).__name__}", f"an error while handling {what}", trace=True)

    def _flush(self) -> bool:
        """Send all queued messages; False when the queue says to close."""
        for item in self._outbox.taken():
            if item is None:
                return False
            peer, frames, lasting = item
            delivery = self._deliveries.setdefault(peer, Redelivery())
            if not frames:
                del self._deliveries[peer]
                continue
            self._transmit(peer, delivery.numbered(frames) if lasting else delivery.passing(frames))
        return True

    def _transmit(self, peer: bytes, frames: list[bytes]) -> None:
        self._router.send_multipart([peer, *frames], copy=max(map(len, frames)) < 65536)

    def _shut(self) -> None:
        self._half_open.close()
        self._router.close()
        self._authenticator.stop()
        self._context.term()
        self._outbox.close()


def job_of(peer: bytes) -> str:
    """The Spark job of the agent with this routing id, which it makes of the job's name and a number of its own."""
    return peer.rpartition(b"-")[0].decode(errors="replace")
