"""Unix sockets between the ranks of one host: to meet, to notice a death at once, and to hand out shared memory.

Everything is nameless once it stands: the first of them listens on an abstract socket, which is in no directory, and
passes the memory file and the other ranks' connections as descriptors (SCM_RIGHTS). When a process ends, however it
ends, the kernel closes its sockets and its peers read the end of the stream.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import os
import secrets
import select
import socket
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from tfos_magic.this_host import peer_user
from tfos_magic.training.allreduce import PeerLost, astray
from tfos_magic.training.allreduce.handshake import HANDSHAKE_SECONDS
from tfos_magic.transport.side_by_side import verified

TOKEN_BYTES = 16
_MEETING = struct.Struct("<II")
_ABORT = b"given up: "  # longer than a meeting
_MAX_MESSAGE = 512


class UnixPeers:
    """Connections of the member ``rank`` to all others. Meetings are one thread's job, ``abort`` is anyone's.

    Members count from 0; ``names`` holds the ranks that messages call them by.

    ``seconds`` is the last resort of a meeting; what calls it has limits of its own, and aborts. ``failure`` says why
    the mesh is broken, empty while it is not.
    """

    def __init__(
        self, rank: int, peers: dict[int, socket.socket], names: Sequence[int], *, seconds: float = 3600.0
    ) -> None:
        self.seconds = seconds
        self.failure = ""
        self._name = names[rank]
        self._names = names
        self._peers = peers
        self._ranks = {peer.fileno(): other for other, peer in peers.items()}
        self._early: dict[int, bytes] = {}
        self._meetings = 0
        self._lock = threading.Lock()
        self._poll = select.poll()
        for peer in peers.values():
            peer.setblocking(True)
            self._poll.register(peer, select.POLLIN)
        close_in_forks(self)

    def meet(self, operation: int) -> None:
        """Return when every peer came to this meeting, for the same 32-bit ``operation``.

        Raises :class:`PeerLost`, here and at the peers, when a peer ended, is late or came for something else.
        """
        self._meetings = (self._meetings + 1) & 0xFFFFFFFF
        message = _MEETING.pack(operation, self._meetings)
        for peer in self._peers.values():
            with contextlib.suppress(OSError):  # a peer that is gone is met below, where its last words can be read
                peer.send(message)
        waiting = dict.fromkeys(self._peers)
        for other in list(self._early):
            del waiting[other]
            self._check(other, self._early.pop(other), message)
        deadline = time.monotonic() + self.seconds
        while waiting:
            for other, heard in self._hear(deadline, waiting):
                if other not in waiting and len(heard) == _MEETING.size:
                    self._early[other] = heard  # it was here already and is one meeting ahead
                    continue
                waiting.pop(other, None)
                self._check(other, heard, message)

    @property
    def descriptors(self) -> list[int]:
        return list(self._ranks)

    def heed(self) -> None:
        """Read what peers say between meetings: that they are at the next one, or their last words.

        Raises :class:`PeerLost`, here and at the peers, when one ended or gave up.
        """
        for descriptor, _ in self._poll.poll(0):
            other = self._ranks[descriptor]
            heard = _receive(self._peers[other])
            if len(heard) != _MEETING.size or other in self._early:
                self._lose(other, heard)
            self._early[other] = heard

    def abort(self, reason: str) -> None:
        """Break the mesh: a meeting that waits fails now, here and at the peers."""
        with self._lock:
            if self.failure:
                return
            self.failure = reason
        for peer in self._peers.values():
            with contextlib.suppress(OSError):  # that peer is gone already
                peer.send(_ABORT + reason.encode()[: _MAX_MESSAGE - len(_ABORT)], socket.MSG_DONTWAIT)
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Leave; for the end, when no rank has anything to sum any more."""
        self.abort(f"rank {self._name} left")
        for peer in self._peers.values():
            peer.close()

    def close_descriptors(self) -> None:
        """Close this process's descriptors without a word to the peers."""
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.close()

    def _hear(self, deadline: float, waiting: dict[int, None]) -> list[tuple[int, bytes]]:
        ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            missing = ", ".join(str(self._names[other]) for other in waiting)
            self._fail(f"rank {self._name} got no answer from rank {missing} within {self.seconds:g} s")
        return [(other, _receive(self._peers[other])) for other in (self._ranks[descriptor] for descriptor, _ in ready)]

    def _check(self, other: int, heard: bytes, expected: bytes) -> None:
        if heard != expected:
            self._lose(other, heard)

    def _lose(self, other: int, heard: bytes) -> NoReturn:
        name = self._names[other]
        if not heard:
            self._fail(f"the process of rank {name} ended")
        if heard.startswith(_ABORT):
            self._fail(f"rank {name} aborted: {heard[len(_ABORT) :].decode(errors='ignore')}")
        self._fail(astray(name))

    def _fail(self, reason: str) -> NoReturn:
        self.abort(reason)
        raise PeerLost(self.failure)


@dataclass(frozen=True)
class GroupInvitation:
    """How ranks find the first of their host: its socket's name, and a secret no listing of sockets shows."""

    name: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def derive(cls, key: bytes, host: str) -> GroupInvitation:
        """The invitation to the group on ``host``, for whoever knows ``key``."""
        name, secret = (hmac.digest(key, f"{use} {host}".encode(), "sha256") for use in ("name", "secret"))
        return cls(name[:TOKEN_BYTES], secret[:TOKEN_BYTES])

    @property
    def address(self) -> str:
        return "\0tfos-" + self.name.hex()


def listen(invitation: GroupInvitation) -> socket.socket:
    """Open the socket of ``invitation``. Raises OSError where the system has no such sockets."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(invitation.address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def host(
    listener: socket.socket, invitation: GroupInvitation, names: Sequence[int], file: int, seconds: float
) -> UnixPeers:
    """On the first member: wait for all others, give each the descriptor ``file`` and its connections to the rest.

    Raises OSError (TimeoutError after ``seconds``) when they do not come.
    """
    peers: dict[int, socket.socket] = {}
    size = len(names)
    with contextlib.ExitStack() as opened:
        if size > 1:
            for rank, peer in _accept(listener, invitation, time.monotonic() + seconds):
                opened.callback(peer.close)
                if 0 < rank < size and rank not in peers:
                    peers[rank] = peer
                if len(peers) == size - 1:
                    break
        ends: dict[int, list[int]] = {rank: [] for rank in peers}
        for one, other in itertools.combinations(range(1, size), 2):
            left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(left)
            opened.enter_context(right)
            ends[one].append(left.fileno())
            ends[other].append(right.fileno())
        for rank, peer in peers.items():
            socket.send_fds(peer, [b"mesh"], [file, *ends[rank]])
        return UnixPeers(0, {rank: peers[rank].dup() for rank in sorted(peers)}, names)


def join(invitation: GroupInvitation, rank: int, names: Sequence[int], seconds: float) -> tuple[UnixPeers, int]:
    """On the other members: connect to the first and give the mesh and the descriptor of the shared file."""
    size = len(names)
    with contextlib.ExitStack() as opened:
        root = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        root.settimeout(seconds)
        root.connect(invitation.address)
        _check_user(root)
        root.send(invitation.secret + bytes([rank & 0xFF, rank >> 8]))
        message, descriptors, _, _ = socket.recv_fds(root, 16, size)
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors[1:]]
        if message != b"mesh" or len(sockets) != size - 2:
            for descriptor in descriptors[:1]:
                os.close(descriptor)
            for other in sockets:
                other.close()
            raise OSError(f"rank {names[0]} did not pass on the connections")
        others = [other for other in range(1, size) if other != rank]
        return UnixPeers(rank, {0: root.dup(), **dict(zip(others, sockets, strict=True))}, names), descriptors[0]


def nameless_file(size: int) -> int:
    """Descriptor of a file of ``size`` bytes that is in no directory and whose room is there, or OSError."""
    try:
        file = os.memfd_create("tfos-wire", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # not on this system, or not allowed in this container
        with tempfile.TemporaryFile(prefix="tfos-wire-") as opened:
            file = os.dup(opened.fileno())
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        raise
    return file


def _accept(
    listener: socket.socket, invitation: GroupInvitation, deadline: float
) -> Iterator[tuple[int, socket.socket]]:
    """Give ranks and sockets of this user's processes that know the invitation; others are closed, and delay nobody."""
    return verified(listener, lambda peer: _verify(peer, invitation), deadline, seconds=HANDSHAKE_SECONDS)


def _verify(peer: socket.socket, invitation: GroupInvitation) -> int:
    _check_user(peer)
    hello = peer.recv(TOKEN_BYTES + 2)
    known = secrets.compare_digest(hello[:TOKEN_BYTES], invitation.secret) and len(hello) == TOKEN_BYTES + 2
    if not known:
        raise PermissionError("the peer does not know this group's secret")
    return int.from_bytes(hello[TOKEN_BYTES:], "little")


def _check_user(peer: socket.socket) -> None:
    if (user := peer_user(peer)) != os.getuid():
        raise PermissionError(f"the peer belongs to user {user}, not {os.getuid()}")


def _receive(peer: socket.socket) -> bytes:
    try:
        return peer.recv(_MAX_MESSAGE)
    except OSError:  # reset: what a peer that died with our message unread leaves
        return b""


class Connected(Protocol):
    def close_descriptors(self) -> None: ...


def close_in_forks(mesh: Connected) -> None:
    """A forked child must not hold our connections open, or peers would not notice our death."""
    reference = weakref.ref(mesh)

    def close() -> None:
        if (held := reference()) is not None:
            held.close_descriptors()

    os.register_at_fork(after_in_child=close)
