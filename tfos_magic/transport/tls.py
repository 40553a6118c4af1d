"""TLS on the connections between hosts, once both ends know that the other is of their group."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any

from tfos_magic.transport.identity import Identity, tls_context


class Meddled(OSError):
    """What came over an encrypted connection was not what the peer has sent."""


class TlsSocket(ssl.SSLSocket):
    """A socket with the calls that swaps of memory need, on which one thread may send while another receives.

    Calls on one that does not block raise BlockingIOError where they would have to wait.
    """

    lock: threading.Lock

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Send as much of the buffers as the connection takes now; gives the number of bytes."""
        count = 0
        for buffer in buffers:
            view = memoryview(buffer)
            while view.nbytes:
                try:
                    with self.lock:
                        done = super().send(view)
                except ssl.SSLError as error:
                    if count and isinstance(error, ssl.SSLWantWriteError):
                        return count
                    raise _as_of_sockets(error) from error
                count, view = count + done, view[done:]
        return count

    def recvmsg_into(self, buffers: Iterable[Any], *_: Any) -> tuple[int, list[Any], int, Any]:  # type: ignore[override]
        """Fill the first buffer as far as there is something; 0 bytes are the end."""
        try:
            with self.lock:
                return super().recv_into(next(iter(buffers))), [], 0, None
        except ssl.SSLError as error:
            raise _as_of_sockets(error) from error

    def shutdown(self, how: int) -> None:
        """End the connection below, so that what another thread has under way fails, and is still encrypted."""
        socket.socket.shutdown(self, how)


class TlsPeers:
    """Encrypts this process's connections by its ``identity``, to ranks whose certificates have ``names``."""

    def __init__(self, identity: Identity, names: Sequence[str]) -> None:
        self._names = names
        self._client, self._server = (tls_context(identity, side) for side in (False, True))
        for context in (self._client, self._server):
            context.sslsocket_class = TlsSocket

    def among(self, ranks: Sequence[int]) -> TlsPeers:
        """For a group of some of the ranks, which are numbered from 0 there, in the order given."""
        some = copy(self)
        some._names = [self._names[rank] for rank in ranks]
        return some

    def connected(self, peer: socket.socket, rank: int, deadline: float) -> socket.socket:
        """Encrypt a connection that this process made to ``rank``. Raises OSError, after which ``peer`` is closed."""
        return self._shaken(self._client.wrap_socket(peer, False, False, server_hostname=self._names[rank]), deadline)

    def accepted(self, peer: socket.socket, rank: int, deadline: float) -> socket.socket:
        """Encrypt a connection that ``rank`` made. Raises OSError, after which ``peer`` is closed."""
        secured = self._shaken(self._server.wrap_socket(peer, True, False), deadline)
        certificate: Any = secured.getpeercert() or {}
        shown = {name for _, name in certificate.get("subjectAltName", ())}
        if shown != {self._names[rank]}:
            secured.close()
            raise PermissionError(f"rank {rank} shows a certificate of {', '.join(shown)}, not of {self._names[rank]}")
        return secured

    def _shaken(self, peer: ssl.SSLSocket, deadline: float) -> TlsSocket:
        assert isinstance(peer, TlsSocket)
        peer.lock = threading.Lock()
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            peer.do_handshake()
        except OSError:
            peer.close()
            raise
        return peer


def secure(
    tls: TlsPeers | None, peer: socket.socket, rank: int, deadline: float, *, accepted: bool = False
) -> socket.socket:
    """Encrypt a connection, where the group does; see :meth:`TlsPeers.connected` and :meth:`TlsPeers.accepted`."""
    if tls is None:
        return peer
    return tls.accepted(peer, rank, deadline) if accepted else tls.connected(peer, rank, deadline)


def _as_of_sockets(error: ssl.SSLError) -> OSError:
    """What a plain socket would raise."""
    if isinstance(error, (ssl.SSLWantReadError, ssl.SSLWantWriteError)):
        return BlockingIOError()
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return ConnectionResetError("the connection was closed")
    return Meddled(f"what came is not what was sent ({error.reason or error})")
