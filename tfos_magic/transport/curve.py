"""ZeroMQ sockets that talk to those alone whose keys they know: CURVE (http://curvezmq.org)."""

from __future__ import annotations

import zmq
from zmq.auth.thread import ThreadAuthenticator

from tfos_magic.transport.multipart import FRAME_BYTES
from tfos_magic.transport.secret import SecretBytes

HANDSHAKE_SECONDS, RELAYED_HANDSHAKE_SECONDS = 10, 60
_OVERHEAD = 64
"""Bytes that encryption adds to a frame, and some more."""


class KnownKeys:
    """Public keys in Z85 form, by which those who have their secret halves are let in, and the names of these."""

    def __init__(self, **names: bytes) -> None:
        self._names = {public: name for name, public in names.items()}

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Make a pair of keys, public and secret, for who is called ``name``."""
        public, secret = zmq.curve_keypair()
        self._names[public] = name
        return public, SecretBytes(secret)

    def name_of(self, public: bytes) -> str | None:
        """Whose key it is; None for a stranger's."""
        return self._names.get(public)

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by the authenticator in a handshake. Keys are no secrets, so that how long a look takes tells none."""
        return key in self._names


def let_in(context: zmq.Context[zmq.Socket[bytes]], known: KnownKeys) -> ThreadAuthenticator:
    """Let the sockets of ``context`` that serve be reached with ``known`` keys alone. Stop it at the end."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", credentials_provider=known)
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


def beat(socket: zmq.Socket[bytes], *, seconds: float, patience: float, peers_patience: float) -> None:
    """Let the library's own threads ask who is dialled, every so many ``seconds``, whether it lives: it is lost after
    ``patience`` seconds, and takes this one for lost after ``peers_patience``.

    So a busy process is not taken for a dead one. Those that are dialled ask nobody: where one of their connections
    ends whose peer has come back by another, libzmq 4.3.5 aborts the process when it is to ask.
    """
    socket.heartbeat_ivl, socket.heartbeat_timeout = int(seconds * 1000), int(patience * 1000)
    socket.heartbeat_ttl = int(peers_patience * 1000)


def unbounded(socket: zmq.Socket[bytes], linger: float = 0.0) -> None:
    """Queues are bounded by what is asked, not here; a closed socket goes on sending for ``linger`` seconds."""
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = int(linger * 1000)


def allow_slow_handshakes(socket: zmq.Socket[bytes]) -> None:
    """Before it is bound, or connects: peers are behind a relay, to which an exchange with Spark takes seconds."""
    socket.handshake_ivl = RELAYED_HANDSHAKE_SECONDS * 1000


def _bound(socket: zmq.Socket[bytes]) -> None:
    """Let nobody, known or not, make this process keep more than a frame of :mod:`.frames`, or wait for long."""
    socket.maxmsgsize = FRAME_BYTES + _OVERHEAD
    socket.handshake_ivl = HANDSHAKE_SECONDS * 1000
