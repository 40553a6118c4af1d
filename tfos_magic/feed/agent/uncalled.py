"""Connections to a Flight server over which nobody has called yet: it keeps few of them, and none for long.

gRPC takes whatever connects and waits two minutes for its handshake, and Flight lets nobody set either. Strangers who
say nothing would use up the process's file descriptors. An honest caller comes within milliseconds.
"""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from urllib.parse import unquote

from tfos_magic.transport.half_open import borrowed, shut
from tfos_magic.transport.log_once import LogOnce

MOST = 256
CALL_SECONDS = 10.0
LOOK_SECONDS = 0.2

Peer = tuple[str, int]


class UncalledConnections:
    """Watches the connections to ``port`` of this process in a thread of its own, until :meth:`close`."""

    def __init__(self, port: int, log: LogOnce) -> None:
        self._port, self._log = port, log
        self._most = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self._callers: dict[str, Peer] = {}
        self._since: dict[Peer, float] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tfos-uncalled", daemon=True)
        self._thread.start()

    def called(self, peer: str) -> None:
        """A caller with key and token, as gRPC writes its address, such as ``ipv4:10.0.0.1:4711``."""
        if peer not in self._callers:
            with self._lock:
                self._callers[peer] = _address(peer)

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        with self._lock:
            called = dict(self._callers)
        there = dict(_connections(self._port))
        present = set(map(_plain, there))
        with self._lock:
            for caller in [caller for caller, address in called.items() if address not in present]:
                del self._callers[caller]
            callers = set(self._callers.values())
        self._since = {peer: self._since.get(peer, now) for peer in there if _plain(peer) not in callers}
        surplus = len(self._since) - self._most
        for number, (peer, since) in enumerate(sorted(self._since.items(), key=lambda waiting: waiting[1])):
            if number < surplus or now - since > CALL_SECONDS:
                shut(there[peer], self._port, peer)
                self._log.warning("uncalled", "closed a connection to the feed's port that made no call")


def _connections(port: int) -> Iterator[tuple[Peer, int]]:
    """Who is connected to ``port`` of this process, and the number of the connection."""
    for descriptor in _descriptors():
        with suppress(OSError), borrowed(descriptor) as connection:
            if connection.family != socket.AF_UNIX and connection.getsockname()[1] == port:
                yield connection.getpeername()[:2], descriptor


def _descriptors() -> Iterable[int]:
    try:
        return map(int, os.listdir("/dev/fd"))
    except OSError:  # there is none left to look with
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _address(peer: str) -> Peer:
    """The address that gRPC writes so."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def _plain(peer: Peer) -> Peer:
    """An address of IPv4 without the prefix that it has at a socket of IPv6."""
    return peer[0].removeprefix("::ffff:"), peer[1]
