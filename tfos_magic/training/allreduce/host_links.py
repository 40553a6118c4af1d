"""TCP connections between the first ranks of hosts, on which they exchange memory and hear of each other's end."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tfos_magic.training.allreduce import PeerLost, astray
from tfos_magic.training.allreduce.courses import Course
from tfos_magic.training.allreduce.unix_peers import close_in_forks
from tfos_magic.transport.tls import Meddled, TlsSocket

_HEADER = struct.Struct("<IIQd")
_MAX_WORDS = 512
_MAX_VIEWS = 256  # in one system call, which takes 1,024


class ConnectionListener(Protocol):
    """Other connections to listen to while an exchange waits, by their descriptors; ``heed`` when one has something."""

    @property
    def descriptors(self) -> Sequence[int]: ...

    def heed(self) -> None: ...


@dataclass
class _Traffic:
    """What is to go to a peer next and to come from it in one exchange; ``came`` is when its header did, 0 before."""

    out: list[memoryview]
    into: list[memoryview]
    head: bytearray = field(default_factory=lambda: bytearray(_HEADER.size))
    came: float = 0.0


class Links:
    """Connections of the member ``place`` to all others: one for data, and one for last words.

    Members count from 0; ``names`` holds the ranks that messages call them by. Exchanges are one thread's job,
    ``abort`` is anyone's. ``seconds`` is the last resort of an exchange; what calls it has limits of its own, and
    aborts.
    """

    def __init__(
        self,
        place: int,
        names: Sequence[int],
        data: Mapping[int, socket.socket],
        words: Mapping[int, socket.socket],
        *,
        seconds: float = 3600.0,
    ) -> None:
        self.place = place
        self.names = names
        self.seconds = seconds
        self.failure = ""
        self.sent = 0
        self.waited = 0.0
        """Seconds of the last exchange until all others had come to it."""
        self._data = dict(data)
        self._words = dict(words)
        self._exchanges = 0
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._speakers = {peer.fileno(): other for other, peer in self._words.items()}
        self._carriers = {peer.fileno(): other for other, peer in self._data.items()}
        self._beside: ConnectionListener | None = None
        for peer in [*self._data.values(), *self._words.values()]:
            peer.setblocking(False)
        for descriptor in self._speakers:
            self._poll.register(descriptor, select.POLLIN)
        close_in_forks(self)

    def listen_to(self, beside: ConnectionListener) -> None:
        """Heed ``beside`` too while an exchange waits."""
        self._beside = beside
        for descriptor in beside.descriptors:
            self._poll.register(descriptor, select.POLLIN)

    def exchange(self, operation: int, course: Course, weight: float = 1.0) -> list[float]:
        """Send and receive as ``course`` has it, and give all members' weights.

        Every member must call it with the same 32-bit ``operation``. Raises :class:`PeerLost`, here and at the peers,
        when one ended, is late, came for something else or has another number of bytes to send than is expected.
        """
        self._exchanges = (self._exchanges + 1) & 0xFFFFFFFF
        weights = [weight] * len(self.names)
        begun, self.waited = time.monotonic(), 0.0
        left = {other: self._traffic(operation, course.bytes_to(other), weight) for other in self._data}
        deadline = time.monotonic() + self.seconds
        registered: dict[int, int] = {}
        for other, traffic in left.items():
            self._go_on(other, traffic, operation, course)
            if isinstance(peer := self._data[other], TlsSocket) and peer.pending():
                self._receive(other, traffic, operation, course)  # decrypted by the last exchange, so that none polls
        while True:
            while any([self._go_on(other, traffic, operation, course) for other, traffic in left.items()]):
                pass  # what came from one peer may let something go to another
            for other, traffic in list(left.items()):
                events = (select.POLLIN if traffic.into else 0) | (select.POLLOUT if traffic.out else 0)
                if not events and course.is_over(other):
                    _, _, _, weights[other] = _HEADER.unpack(left.pop(other).head)
                    self.waited = max(self.waited, traffic.came - begun)
                    if other in registered:
                        self._poll.unregister(self._data[other])
                elif registered.get(other) != events:
                    self._poll.register(self._data[other], events)
                    registered[other] = events
            if not left:
                return weights
            self._move(left, operation, course, deadline)

    def abort(self, reason: str) -> None:
        """Break the links: an exchange that waits fails now, here and at the peers."""
        with self._lock:
            if self.failure:
                return
            self.failure = reason
        for other, peer in self._words.items():
            with contextlib.suppress(OSError):  # that peer is gone already
                peer.send(reason.encode()[:_MAX_WORDS])
            for connection in (peer, self._data[other]):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Leave; for the end, when no rank has anything to sum any more."""
        self.abort(f"rank {self.names[self.place]} left")
        for peer in [*self._data.values(), *self._words.values()]:
            peer.close()

    def close_descriptors(self) -> None:
        """Close this process's descriptors without a word to the peers."""
        for peer in [*self._data.values(), *self._words.values()]:
            with contextlib.suppress(OSError):
                peer.close()

    def _traffic(self, operation: int, length: int, weight: float) -> _Traffic:
        header = _HEADER.pack(operation, self._exchanges, length, weight)
        self.sent += length + len(header)
        traffic = _Traffic([memoryview(header)], [])
        traffic.into = [memoryview(traffic.head)]
        return traffic

    def _go_on(self, other: int, traffic: _Traffic, operation: int, course: Course) -> bool:
        """Send what can go by now, and receive where there was no room before; whether there was anything of that."""
        if more := [view for view in course.outgoing(other) if view.nbytes]:
            traffic.out += more
            self._send(other, traffic)
        if has_room := not traffic.into and bool(into := course.incoming(other)):
            traffic.into = [view for view in into if view.nbytes]
            self._receive(other, traffic, operation, course)
        return bool(more) or has_room

    def _move(self, left: dict[int, _Traffic], operation: int, course: Course, deadline: float) -> None:
        ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            missing = ", ".join(str(self.names[other]) for other in left)
            self._fail(f"rank {self.names[self.place]} got no answer from rank {missing} within {self.seconds:g} s")
        for descriptor, _ in ready:
            if descriptor in self._speakers:
                self._heed(self._speakers[descriptor])
            elif descriptor not in self._carriers and self._beside is not None:
                self._beside.heed()
        for descriptor, events in ready:
            if (other := self._carriers.get(descriptor)) is None:
                continue
            if events & select.POLLOUT:
                self._send(other, left[other])
            if events & ~select.POLLOUT:
                self._receive(other, left[other], operation, course)

    def _send(self, other: int, traffic: _Traffic) -> None:
        try:
            while traffic.out:
                _advance(traffic.out, self._data[other].sendmsg(traffic.out[:_MAX_VIEWS]))
        except BlockingIOError:
            return
        except OSError:
            self._heed(other)

    def _receive(self, other: int, traffic: _Traffic, operation: int, course: Course) -> None:
        if not traffic.into:  # it has ended, which its last words tell, too
            return
        try:
            while traffic.into:
                count = self._data[other].recvmsg_into(traffic.into[:_MAX_VIEWS])[0]
                if count == 0:
                    self._heed(other)
                _advance(traffic.into, count)
            self._open(other, traffic, operation, course) if not traffic.came else course.came(other)
        except BlockingIOError:
            return
        except Meddled as error:
            self._fail(f"the connection to rank {self.names[other]} was tampered with: {error}")
        except OSError:
            self._heed(other)

    def _open(self, other: int, traffic: _Traffic, operation: int, course: Course) -> None:
        said, number, length, weight = _HEADER.unpack(traffic.head)
        traffic.came = time.monotonic()
        if (said, number) != (operation, self._exchanges) or length != course.open(other, weight):
            self._fail(astray(self.names[other]))

    def _heed(self, other: int) -> None:
        """The peer speaks, which it does only at its end."""
        name, words = self.names[other], b""
        with contextlib.suppress(OSError):  # reset, or not a word yet although its data ended
            spoken = select.poll()
            spoken.register(self._words[other], select.POLLIN)
            spoken.poll(1000)
            words = self._words[other].recv(_MAX_WORDS)
        said = f"rank {name} aborted: {words.decode(errors='ignore')}" if words else f"the process of rank {name} ended"
        self._fail(said)

    def _fail(self, reason: str) -> None:
        self.abort(reason)
        raise PeerLost(self.failure)


def _advance(views: list[memoryview], count: int) -> None:
    """Leave in ``views`` what comes after their first ``count`` bytes."""
    done = 0
    while done < len(views) and count >= views[done].nbytes:
        count -= views[done].nbytes
        done += 1
    del views[:done]
    if count:
        views[0] = views[0][count:]
