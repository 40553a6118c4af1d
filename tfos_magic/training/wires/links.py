"""TCP connections between the first ranks of hosts, on which they swap memory and hear of each other's end at once."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfos_magic.training.wires import PeerLost, astray
from tfos_magic.training.wires.handshake import accept, connect
from tfos_magic.training.wires.mesh import close_in_forks

_HEADER = struct.Struct("<IIQd")
_MAX_WORDS = 512


@dataclass
class _Traffic:
    """What is left to send to a peer and to receive from it in one swap."""

    out: list[memoryview]
    into: list[memoryview]
    head: bytearray = field(default_factory=lambda: bytearray(_HEADER.size))


class Links:
    """Connections of the member ``place`` to all others: one for data, and one for last words.

    Members count from 0; ``names`` holds the ranks that messages call them by. Swaps are one thread's job, ``abort`` is
    anyone's. ``seconds`` is the last resort of a swap; what calls it has limits of its own, and aborts.
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
        self._data = dict(data)
        self._words = dict(words)
        self._swaps = 0
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._speakers = {peer.fileno(): other for other, peer in self._words.items()}
        self._carriers = {peer.fileno(): other for other, peer in self._data.items()}
        for peer in [*self._data.values(), *self._words.values()]:
            peer.setblocking(False)
        for descriptor in self._speakers:
            self._poll.register(descriptor, select.POLLIN)
        close_in_forks(self)

    def swap(
        self,
        operation: int,
        out: Mapping[int, Sequence[memoryview]],
        into: Mapping[int, Sequence[memoryview]],
        weight: float = 1.0,
    ) -> list[float]:
        """Send ``out`` to the peers and fill ``into`` with what they send; give all members' weights.

        Every member must call it with the same 32-bit ``operation``, its number of bytes as its peers expect them.
        Raises :class:`PeerLost`, here and at the peers, when one ended, is late or came for something else.
        """
        self._swaps = (self._swaps + 1) & 0xFFFFFFFF
        weights = [weight] * len(self.names)
        left = {other: self._traffic(other, operation, out[other], into[other], weight) for other in self._data}
        deadline = time.monotonic() + self.seconds
        for other in list(left):
            self._send(other, left[other])
        asked: dict[int, int] = {}
        while left:
            for other in list(left):
                wanted = (select.POLLIN if left[other].into else 0) | (select.POLLOUT if left[other].out else 0)
                if not wanted:
                    _, _, _, weights[other] = _HEADER.unpack(left.pop(other).head)
                    self._poll.unregister(self._data[other])
                    del asked[other]
                elif asked.get(other) != wanted:
                    self._poll.register(self._data[other], wanted)
                    asked[other] = wanted
            if left:
                self._move(left, operation, deadline)
        return weights

    def abort(self, reason: str) -> None:
        """Break the links: a swap that waits fails now, here and at the peers."""
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

    def _traffic(
        self, other: int, operation: int, out: Sequence[memoryview], into: Sequence[memoryview], weight: float
    ) -> _Traffic:
        length = sum(view.nbytes for view in out)
        header = _HEADER.pack(operation, self._swaps, length, weight)
        self.sent += length + len(header)
        traffic = _Traffic([memoryview(header), *(view for view in out if view.nbytes)], [])
        traffic.into = [memoryview(traffic.head), *(view for view in into if view.nbytes)]
        return traffic

    def _move(self, left: dict[int, _Traffic], operation: int, deadline: float) -> None:
        ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            missing = ", ".join(str(self.names[other]) for other in left)
            self._fail(f"rank {self.names[self.place]} had no answer from rank {missing} within {self.seconds:g} s")
        for descriptor, _ in ready:
            if descriptor in self._speakers:
                self._heed(self._speakers[descriptor])
        for descriptor, events in ready:
            other = self._carriers[descriptor]
            if events & select.POLLOUT:
                self._send(other, left[other])
            if events & ~select.POLLOUT:
                self._receive(other, left[other], operation)

    def _send(self, other: int, traffic: _Traffic) -> None:
        try:
            while traffic.out:
                count = self._data[other].sendmsg(traffic.out[:8])
                while traffic.out and count >= traffic.out[0].nbytes:
                    count -= traffic.out.pop(0).nbytes
                if traffic.out:
                    traffic.out[0] = traffic.out[0][count:]
        except BlockingIOError:
            return
        except OSError:
            self._heed(other)

    def _receive(self, other: int, traffic: _Traffic, operation: int) -> None:
        try:
            while traffic.into:
                heading = traffic.into[0].obj is traffic.head
                count = self._data[other].recv_into(traffic.into[0])
                if count == 0:
                    self._heed(other)
                traffic.into[0] = traffic.into[0][count:]
                if traffic.into[0].nbytes == 0:
                    traffic.into.pop(0)
                    if heading:
                        self._check(other, traffic, operation)
        except BlockingIOError:
            return
        except OSError:
            self._heed(other)

    def _check(self, other: int, traffic: _Traffic, operation: int) -> None:
        said, number, length, _ = _HEADER.unpack(traffic.head)
        if (said, number, length) != (operation, self._swaps, sum(view.nbytes for view in traffic.into)):
            name = self.names[other]
            self._fail(astray(name))

    def _heed(self, other: int) -> None:
        """The peer speaks, which it does only at its end."""
        name, words = self.names[other], b""
        with contextlib.suppress(OSError):  # reset, or not a word yet although its data ended
            spoken = select.poll()
            spoken.register(self._words[other], select.POLLIN)
            spoken.poll(1000)
            words = self._words[other].recv(_MAX_WORDS)
        said = (
            f"rank {name} gave up: {words.decode(errors='replace')}" if words else f"the process of rank {name} ended"
        )
        self._fail(said)

    def _fail(self, reason: str) -> None:
        self.abort(reason)
        raise PeerLost(self.failure)


def link(
    place: int, names: Sequence[int], addresses: Sequence[str], listener: socket.socket, secret: bytes, seconds: float
) -> Links:
    """Connect the member ``place`` to all others, who do the same; ``addresses`` are those of the members.

    Raises OSError (TimeoutError after ``seconds``) when one does not come.
    """
    deadline = time.monotonic() + seconds
    found: dict[str, dict[int, socket.socket]] = {"data": {}, "words": {}}
    with contextlib.ExitStack() as opened:
        for use, sockets in found.items():
            for other in range(place):
                sockets[other] = connect(addresses[other], names[place], use, secret, deadline)
                opened.callback(sockets[other].close)
            wanted = set(range(place + 1, len(names)))
            for rank, peer in accept(listener, use, secret, deadline) if wanted else ():
                opened.callback(peer.close)
                other = names.index(rank) if rank in names else -1
                if other in wanted:
                    wanted.remove(other)
                    sockets[other] = peer
                if not wanted:
                    break
        opened.pop_all()
    return Links(place, names, found["data"], found["words"])
