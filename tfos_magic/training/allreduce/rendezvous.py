"""Where the ranks first meet: a star around rank 0, over which they agree on how they will be connected."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from tfos_magic.errors import ClusterError
from tfos_magic.training.allreduce.handshake import accept, connect, receive
from tfos_magic.transport.tls import TlsPeers, secure

_LENGTH = struct.Struct("<I")
_MAX_WORDS = 1 << 22
_REMEDY = "Check that these trainers run and that no firewall blocks traffic between executors."


class Star:
    """Connections between rank 0 and all others, until ``close``. ``deadline`` (monotonic) limits every wait.

    Raises :class:`ClusterError` that names who did not come.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        listener: socket.socket,
        secret: bytes,
        timeout: float,
        tls: TlsPeers | None = None,
    ) -> None:
        self._rank = rank
        self._tls = tls
        self._addresses = addresses
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._peers: dict[int, socket.socket] = {}
        if rank == 0:
            self._await_all(listener, secret)
            return
        try:
            peer = connect(addresses[0], rank, "star", secret, self._deadline)
            self._peers[0] = secure(tls, peer, 0, self._deadline)
        except OSError as error:
            raise self._missing({0: str(error)}) from error

    def gather(self, words: dict[str, Any]) -> list[dict[str, Any]]:
        """Give every rank what all ranks said, by rank."""
        try:
            if self._rank != 0:
                self._send(0, words)
                return self._checked(0, self._hear(0), words)
            everything = [words, *(self._checked(peer, [self._hear(peer)], words)[0] for peer in sorted(self._peers))]
            for peer in self._peers:
                self._send(peer, everything)
            return everything
        except OSError as error:
            raise ClusterError(
                f"rank {self._rank} lost a peer while the ranks were connecting ({error}). Check the other workers' "
                "output, then restart the cluster."
            ) from error

    def _checked(self, peer: int, said: Any, words: dict[str, Any]) -> list[dict[str, Any]]:
        """What ``peer`` said, which is to be of the kind of this rank's ``words``."""
        if not isinstance(said, list) or not all(isinstance(s, dict) and s.keys() == words.keys() for s in said):
            raise ConnectionError(f"rank {peer} sent an unexpected reply")
        return said

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def _await_all(self, listener: socket.socket, secret: bytes) -> None:
        size = len(self._addresses)
        with contextlib.suppress(TimeoutError):
            for rank, caller in accept(listener, "star", secret, self._deadline):
                if 0 < rank < size and rank not in self._peers:
                    with contextlib.suppress(OSError):  # it cannot say who it is, and is missing
                        self._peers[rank] = secure(self._tls, caller, rank, self._deadline, accepted=True)
                else:
                    caller.close()
                if len(self._peers) == size - 1:
                    return
        missing = self._missing({rank: "" for rank in range(1, size) if rank not in self._peers})
        for peer in self._peers:
            with contextlib.suppress(OSError):  # it may have given up by itself
                self._send(peer, {"error": str(missing)})
        self.close()
        raise missing

    def _missing(self, peers: dict[int, str]) -> ClusterError:
        named = ", ".join(
            f"rank {p} at {self._addresses[p]}" + (f" ({why})" if why else "") for p, why in peers.items()
        )
        return ClusterError(
            f"rank {self._rank} waited {self._timeout:g} s for its peers; no answer from {named}. {_REMEDY}"
        )

    def _send(self, peer: int, words: Any) -> None:
        data = json.dumps(words).encode()
        self._peers[peer].settimeout(self._left())
        self._peers[peer].sendall(_LENGTH.pack(len(data)) + data)

    def _hear(self, peer: int) -> Any:
        self._peers[peer].settimeout(self._left())
        (length,) = _LENGTH.unpack(receive(self._peers[peer], _LENGTH.size))
        if length > _MAX_WORDS:
            raise ConnectionError(f"rank {peer} sent {length} bytes at once")
        try:
            words = json.loads(receive(self._peers[peer], length))
        except (ValueError, RecursionError):
            raise ConnectionError(f"rank {peer} sent an unreadable reply") from None
        if isinstance(words, dict) and "error" in words:
            raise ClusterError(words["error"])
        return words

    def _left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())
