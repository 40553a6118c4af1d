"""The control socket beside the kernel: one ZeroMQ ROUTER that agents dial, closed to anyone without the key.

Keys are made per cluster and never leave the process but in the closure of the agents' Spark job. The handshake is
CURVE (http://curvezmq.org); a peer that fails it is dropped by the library before any byte of it is read as a message.
An agent keeps its routing id when its connection breaks and comes back, and nothing that was said meanwhile is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from tfos_magic.errors import ClusterError, ProtocolError
from tfos_magic.transport.curve import beat, let_in, secure_server
from tfos_magic.transport.messages import Heard, Heartbeat, Message, Reconnected, Shutdown, decode, encode
from tfos_magic.transport.redelivery import Redelivery
from tfos_magic.transport.secret import SecretBytes
from tfos_magic.transport.wake_queue import WakeQueue

log = logging.getLogger("tfos_magic.cluster")

_REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


@dataclass(frozen=True)
class AgentKeys:
    """What an agent needs to be heard: the server's public key and the cluster's one client key pair."""

    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


class ControlServer:
    """Listens on one address, gives each authenticated message to ``handler(peer, message)`` in its own thread.

    ``peer`` is the agent's routing id. ``send`` may be called from any thread; a message to a peer whose connection is
    broken is sent again when it is back. One that does not come back is lost, which is reported by other means.
    """

    def __init__(self, host: str, port: int, handler: Callable[[bytes, Message], None]) -> None:
        self._handler = handler
        self._outbox: WakeQueue[tuple[bytes, list[bytes], bool] | None] = WakeQueue()
        self._deliveries: dict[bytes, Redelivery] = {}
        self._context = zmq.Context()
        self._refused: set[str] = set()
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        self._secret = SecretBytes(server_secret)
        self.keys = AgentKeys(server_public, client_public, SecretBytes(client_secret))
        self._authenticator = let_in(self._context, client_public)
        self._router = self._bind(host, port)
        self._monitor = self._router.get_monitor_socket(_REFUSALS)
        self.endpoint: str = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, name="tfos-control", daemon=True)
        self._thread.start()

    def _bind(self, host: str, port: int) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        secure_server(router, self._secret)
        beat(router, seconds=2, patience=30, linger=1)
        router.handshake_ivl = 10_000
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
        for source in (self._router, self._monitor, self._outbox.fileno()):
            poller.register(source, zmq.POLLIN)
        open_ = True
        while open_:
            ready: dict[Any, int] = dict(poller.poll())
            if self._router in ready:
                self._receive()
            if self._monitor in ready:
                self._note_refusal()
            if self._outbox.fileno() in ready:
                open_ = self._flush()
        self._shut()

    def _receive(self) -> None:
        peer, *frames = self._router.recv_multipart()
        delivery = self._deliveries.setdefault(peer, Redelivery())
        try:
            taken = delivery.take(frames)
            if taken is None:
                return
            message = decode(taken)
        except ProtocolError as error:
            log.warning("dropped a malformed message from an agent: %s", error)
            return
        if isinstance(message, Reconnected):
            for each in delivery.again():
                self._transmit(peer, each)
            return
        if isinstance(message, Heartbeat):
            self._transmit(peer, delivery.passing(encode(Heard())))
        try:
            self._handler(peer, message)
        except Exception:
            log.exception("while handling %s", type(message).__name__)

    def _note_refusal(self) -> None:
        event = recv_monitor_message(self._monitor)
        kind = str(zmq.Event(event["event"]).name).lower().replace("_", " ")
        if kind not in self._refused:
            self._refused.add(kind)
            log.warning("refused a connection to the control socket (%s); further ones are not logged", kind)

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
        self._router.send_multipart([peer, *frames], copy=len(frames[-1]) < 65536)

    def _shut(self) -> None:
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close()
        self._authenticator.stop()
        self._context.term()
        self._outbox.close()
