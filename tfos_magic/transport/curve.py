"""ZeroMQ sockets that talk to those alone who have the one key: CURVE (http://curvezmq.org)."""

from __future__ import annotations

import hmac

import zmq
from zmq.auth.thread import ThreadAuthenticator

from tfos_magic.transport.frames import FRAME_BYTES

HANDSHAKE_SECONDS = 10
_OVERHEAD = 64
"""Bytes that encryption adds to a frame, and some more."""


def let_in(context: zmq.Context[zmq.Socket[bytes]], public: bytes) -> ThreadAuthenticator:
    """Let the sockets of ``context`` that serve be reached with the keys of ``public`` alone. Stop it at the end."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", credentials_provider=_OneKey(public))
    return authenticator


def secure_server(socket: zmq.Socket[bytes], secret: bytes) -> None:
    """Before it is bound: a peer that fails the handshake is dropped before any byte of it is read as a message."""
    _bound(socket)
    socket.curve_server = True
    socket.curve_secretkey = secret


def secure_client(socket: zmq.Socket[bytes], server: bytes, public: bytes, secret: bytes) -> None:
    """Before it connects to who has the public key ``server``."""
    _bound(socket)
    socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = server, public, secret


def beat(socket: zmq.Socket[bytes], *, seconds: float, patience: float, linger: float = 0.0) -> None:
    """Let the library's own threads ask each other every so many ``seconds`` whether they live.

    So a busy process is not taken for a dead one. Queues are bounded by what is asked, not here; a closed socket
    goes on sending for ``linger`` seconds.
    """
    socket.heartbeat_ivl, socket.heartbeat_timeout = int(seconds * 1000), int(patience * 1000)
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = int(linger * 1000)


def _bound(socket: zmq.Socket[bytes]) -> None:
    """Let nobody, known or not, make this process keep more than a frame of :mod:`.frames`, or wait for long."""
    socket.maxmsgsize = FRAME_BYTES + _OVERHEAD
    socket.handshake_ivl = HANDSHAKE_SECONDS * 1000


class _OneKey:
    """Asked by the authenticator with a peer's public key in Z85 form."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(key, self._public)
