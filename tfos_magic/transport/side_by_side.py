"""Peers of a listening socket that are verified side by side, so that one which says nothing delays nobody.

Each has a thread of its own while it is verified, and so many seconds for all of it, however it spreads its bytes.
Where too many wait at once the one that came first goes: an honest peer is through in milliseconds.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tfos_magic.transport.wake_queue import WakeQueue

AT_ONCE = 128
GRACE = 0.25
"""Seconds that a peer has even where others want its place."""
T = TypeVar("T")


def verified(
    listener: socket.socket, verify: Callable[[socket.socket], T], deadline: float, *, seconds: float
) -> Generator[tuple[T, socket.socket], None, None]:
    """Give what ``verify`` says of each peer with its socket, as they pass. It raises OSError for those to be closed.

    A peer has ``seconds``, and all have until ``deadline`` (of ``time.monotonic``), at which TimeoutError is raised.
    """
    waiting = _Waiting(verify, seconds)
    listener.setblocking(False)
    try:
        while True:
            sources = [waiting.passed, *([] if waiting.is_full else [listener])]
            ready = _await(sources, min(deadline, waiting.next_deadline))
            if time.monotonic() >= deadline:
                raise TimeoutError("timed out")
            waiting.give_up_late()
            if listener in ready:
                waiting.accept(listener)
            yield from waiting.through()
    finally:
        waiting.close()


@dataclass(eq=False)
class _Peer(Generic[T]):
    socket: socket.socket
    came: float = field(default_factory=time.monotonic)
    said: list[T] = field(default_factory=list)
    thread: threading.Thread | None = None


class _Waiting(Generic[T]):
    """Those that are being verified, in the order in which they came."""

    def __init__(self, verify: Callable[[socket.socket], T], seconds: float) -> None:
        self._verify, self._seconds = verify, seconds
        self._peers: list[_Peer[T]] = []
        self.passed: WakeQueue[_Peer[T]] = WakeQueue()

    @property
    def is_full(self) -> bool:
        return len(self._peers) >= AT_ONCE

    @property
    def next_deadline(self) -> float:
        """When the time of the peer that came first is over."""
        return self._peers[0].came + (GRACE if self.is_full else self._seconds) if self._peers else float("inf")

    def accept(self, listener: socket.socket) -> None:
        """Begin with the next peer. Raises OSError where there are no descriptors, and none that will be free."""
        try:
            peer: _Peer[T] = _Peer(listener.accept()[0])
        except (BlockingIOError, ConnectionAbortedError):  # it went away again
            return
        except OSError:
            if not self._peers:
                raise
            self._give_up(self._peers[0])
            return
        peer.socket.settimeout(self._seconds)
        self._peers.append(peer)
        peer.thread = threading.Thread(target=self._work, args=(peer,), name="tfos-verify", daemon=True)
        peer.thread.start()

    def give_up_late(self) -> None:
        while self.next_deadline <= time.monotonic() and not self._peers[0].said:
            self._give_up(self._peers[0])

    def through(self) -> Iterator[tuple[T, socket.socket]]:
        """Those that were verified since the last time; the others are closed."""
        for peer in self.passed.taken():
            if peer not in self._peers:
                continue  # it was late
            self._leave(peer)
            if peer.said:
                yield peer.said[0], peer.socket
            else:
                peer.socket.close()

    def close(self) -> None:
        while self._peers:
            self._give_up(self._peers[0])
        self.passed.close()

    def _work(self, peer: _Peer[T]) -> None:
        with suppress(OSError):  # a stranger, or a peer that went away
            peer.said.append(self._verify(peer.socket))
        self.passed.put(peer)

    def _give_up(self, peer: _Peer[T]) -> None:
        with suppress(OSError):  # gone by itself
            peer.socket.shutdown(socket.SHUT_RDWR)
        self._leave(peer)
        peer.socket.close()

    def _leave(self, peer: _Peer[T]) -> None:
        self._peers.remove(peer)
        assert peer.thread is not None
        peer.thread.join()


def _await(sources: Sequence[Any], deadline: float) -> list[Any]:
    """Which of the sources have something, now or before ``deadline``."""
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    descriptors = {source.fileno(): source for source in sources}
    seconds = max(0.0, deadline - time.monotonic())
    return [descriptors[descriptor] for descriptor, _ in poll.poll(seconds * 1000 + 1)]
