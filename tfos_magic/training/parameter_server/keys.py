"""How the trainers of a generation know each other: CURVE keys (http://curvezmq.org) that only they can derive."""

from __future__ import annotations

import hmac
from typing import Any

import zmq
from zmq.utils import z85

_LABEL = b"tfos_magic parameter servers, "


def keys_of(secret: str, role: str) -> tuple[bytes, bytes]:
    """Public and secret key of ``role`` (``server`` or ``worker``) in the generation that shares ``secret``."""
    key = z85.encode(hmac.digest(secret.encode(), _LABEL + role.encode(), "sha256"))
    return zmq.curve_public(key), key


class OnePeer:
    """A credentials provider that lets in whoever has the one key."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(self._public, key)


def secure_server(socket: zmq.Socket[bytes], secret: str) -> None:
    socket.curve_server = True
    socket.curve_secretkey = keys_of(secret, "server")[1]


def secure_worker(socket: zmq.Socket[bytes], secret: str) -> None:
    socket.curve_serverkey = keys_of(secret, "server")[0]
    socket.curve_publickey, socket.curve_secretkey = keys_of(secret, "worker")


def beat(socket: Any, seconds: float = 1.0, patience: float = 10.0) -> None:
    """Let the library's own threads ask each other whether they live; queues are bounded by what is asked, not here."""
    socket.heartbeat_ivl, socket.heartbeat_timeout = int(seconds * 1000), int(patience * 1000)
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = 0
