"""TCP connections between ranks, each end of which proved that it knows the secret of their group.

A challenge and a response on either side (HMAC-SHA256 over both nonces, RFC 2104): the secret itself never travels, an
answer heard once is of no use again, and a stranger is closed before anything it says is read further.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator

from tfos_magic.transport.side_by_side import verified

HANDSHAKE_SECONDS = 5.0
_HELLO = struct.Struct("<6sH8s16s")
_MAGIC = b"tfos-1"
_DIGEST = 32
_WELCOME = b"+"


def listen(address: str) -> socket.socket:
    """Listen on ``host:port``, a port that the agent may hold (SO_REUSEPORT), and on that host's address alone."""
    listener = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(_split(address))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def connect(address: str, rank: int, use: str, secret: bytes, deadline: float) -> socket.socket:
    """Connect to the rank at ``address`` and prove to be ``rank``, for ``use``, a word both know (8 bytes at most).

    Tries again until ``deadline`` (of ``time.monotonic``) while nobody listens there; then raises OSError.
    """
    while True:
        with contextlib.ExitStack() as opened:
            peer = opened.enter_context(socket.socket(_family(address), socket.SOCK_STREAM))
            try:
                _limit(peer, deadline)
                peer.connect(_split(address))
                _prove(peer, rank, use, secret)
            except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError, TimeoutError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
                continue
            opened.pop_all()
            return _ready(peer)


def accept(listener: socket.socket, use: str, secret: bytes, deadline: float) -> Iterator[tuple[int, socket.socket]]:
    """Give ranks and sockets of peers that know ``secret``, as they come; strangers are closed, and delay nobody.

    A peer has ``HANDSHAKE_SECONDS``. Raises TimeoutError at ``deadline``.
    """
    peers = verified(listener, lambda peer: _verify(peer, use, secret), deadline, seconds=HANDSHAKE_SECONDS)
    with contextlib.closing(peers):
        for rank, peer in peers:
            yield rank, _ready(peer)


def receive(peer: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes, within the socket's timeout. Raises ConnectionResetError when the stream ends before."""
    data = bytearray()
    patience = peer.gettimeout()
    deadline = time.monotonic() + (patience or 0.0)
    while len(data) < count:
        if patience is not None:
            _limit_by(peer, deadline)
        if not (part := peer.recv(count - len(data))):
            raise ConnectionResetError("the connection was closed")
        data += part
    return bytes(data)


def _prove(peer: socket.socket, rank: int, use: str, secret: bytes) -> None:
    hello = _HELLO.pack(_MAGIC, rank, use.encode(), os.urandom(16))
    peer.sendall(hello)
    challenge, proof = receive(peer, 16), receive(peer, _DIGEST)
    if not hmac.compare_digest(proof, _proof(secret, b"server", hello, challenge)):
        raise PermissionError("the peer does not know this group's secret")
    peer.sendall(_proof(secret, b"client", hello, challenge))
    receive(peer, len(_WELCOME))


def _verify(peer: socket.socket, use: str, secret: bytes) -> int:
    hello = receive(peer, _HELLO.size)
    magic, rank, said, _ = _HELLO.unpack(hello)
    if magic != _MAGIC or said.rstrip(b"\0") != use.encode():
        raise PermissionError("not a rank of this group")
    challenge = secrets.token_bytes(16)
    peer.sendall(challenge + _proof(secret, b"server", hello, challenge))
    if not hmac.compare_digest(receive(peer, _DIGEST), _proof(secret, b"client", hello, challenge)):
        raise PermissionError("the peer does not know this group's secret")
    peer.sendall(_WELCOME)
    return int(rank)


def _proof(secret: bytes, side: bytes, hello: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, side + hello + challenge, "sha256")


def _limit(peer: socket.socket, deadline: float) -> None:
    peer.settimeout(max(0.001, min(HANDSHAKE_SECONDS, deadline - time.monotonic())))


def _limit_by(peer: socket.socket, deadline: float) -> None:
    """What is read of ``peer`` is to be there at ``deadline``, in however many pieces it comes."""
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError("timed out")
    peer.settimeout(left)


def _ready(peer: socket.socket) -> socket.socket:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return peer


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if _split(address)[0].count(":") else socket.AF_INET
