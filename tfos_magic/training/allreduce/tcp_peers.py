"""Sums between hosts over plain TCP: every host adds up a share of the values, and sends its result to the others.

The shares go straight to the host that adds them, not around a ring: as many bytes (Rabenseifner 2004), two waits
instead of 2 (n - 1), terms in the order of hosts, and values of 16 bits are rounded once. Several rounds are under way
at once, so that a network with a long delay is kept busy: terms of later ones travel while results of earlier ones are
awaited.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfos_magic.training.allreduce import Array
from tfos_magic.training.allreduce.arithmetic import combine, fractions
from tfos_magic.training.allreduce.buckets import ALIGNMENT, Piece, aligned, plan_chunks
from tfos_magic.training.allreduce.courses import Segment, Shares, Swap
from tfos_magic.training.allreduce.host_links import Links
from tfos_magic.training.allreduce.result_memory import LentArrays

SHARE_BYTES = 512 << 10
WHOLE_BYTES = 16 << 10
PAIR_BYTES = 2 << 20  # to another host alone as many bytes go either way, and a wait less
RATE, SHORT = 125e6, 250e-6
"""Bytes per second that a network is to be kept busy at by several rounds at once, where bytes are under way for longer
than so many seconds: elsewhere terms of one round stay in the cache."""
_DELAYS = 4
_KEPT_PLANS = 64


class _Plan(NamedTuple):
    """The tensors in chunks, of which each round takes one per host; ``whole`` where every host adds all by itself."""

    operation: int
    chunks: list[list[Piece]]
    share: int
    whole: bool
    rounds_at_once: int


class TcpPeers:
    """Reduces arrays over the members that ``links`` connects.

    Values go from the tensors to the sockets and from there to the results; only terms pass through memory kept here.
    """

    name = "TCP sockets"

    def __init__(self, links: Links) -> None:
        self.links = links
        self._size = len(links.names)
        self.waited = 0.0
        self._terms = np.zeros(0, np.uint8)
        self._plans: dict[Any, _Plan] = {}
        self._streams = LentArrays()
        self._delay: float | None = None

    @property
    def sent(self) -> int:
        return self.links.sent

    @property
    def failure(self) -> str:
        return self.links.failure

    def abort(self, reason: str) -> None:
        self.links.abort(reason)

    def close(self) -> None:
        self.links.close()
        self._plans.clear()

    def reduce(self, local_arrays: Sequence[Array], results: Sequence[Array], averaged: int, weight: float) -> float:
        plan = self._plan_of(local_arrays, averaged)
        shape = plan.rounds_at_once, self._size, plan.share
        if self._terms.size < math.prod(shape):
            self._terms = np.empty(math.prod(shape), np.uint8)
        terms = self._terms[: math.prod(shape)].reshape(shape)
        reduction = _Reduction(self.links, plan, terms, local_arrays, results, averaged)
        total = reduction.all_at_once(weight) if plan.whole else reduction.by_shares(weight)
        self.waited += self.links.waited
        return total

    def gather(self, local_arrays: Sequence[Array], operation: int) -> list[Array]:
        members = {self.links.place: self._streams.joined(local_arrays)}

        def room(other: int, length: float) -> list[memoryview]:
            (members[other],) = self._streams.empty([((int(length),), np.dtype(np.uint8))])
            return [members[other].data]

        out = {other: [array.data for array in local_arrays] for other in range(self._size)}
        self.links.exchange(operation, Swap(out, room), float(members[self.links.place].size))
        self.waited += self.links.waited
        return [members[place] for place in range(self._size)]

    def _plan_of(self, local_arrays: Sequence[Array], averaged: int) -> _Plan:
        signature = (averaged, *((array.size, array.dtype) for array in local_arrays))
        if signature not in self._plans:
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[signature] = self._plan(signature)
        return self._plans[signature]

    def _plan(self, signature: Any) -> _Plan:
        tensors = [(count, dtype.itemsize) for count, dtype in signature[1:]]
        total = sum(aligned(count * width) for count, width in tensors)
        whole = total <= (PAIR_BYTES if self._size == 2 else WHOLE_BYTES)
        rounds = 1 if whole else -(-total // (self._size * SHARE_BYTES))
        share = max(aligned(-(-total // (1 if whole else self._size * rounds))), ALIGNMENT)
        operation = zlib.crc32(repr(signature).encode())
        at_once = 1 if whole else min(rounds, self._rounds_at_once(operation, share))
        return _Plan(operation, plan_chunks(tensors, share), share, whole, at_once)

    def _rounds_at_once(self, operation: int, share: int) -> int:
        """As many on all members: the first time they tell each other for how long a few bytes are under way."""
        if self._delay is None:
            self._meet(operation, 0.0)
            begun = time.monotonic()
            for _ in range(_DELAYS):  # of which one may take no time and the next twice as long
                self._meet(operation, 0.0)
            self._delay = max(self._meet(operation, (time.monotonic() - begun) / _DELAYS))
        round_bytes = 2 * share * (self._size - 1)  # terms and results
        return 1 + max(0, math.ceil((self._delay - SHORT) * RATE / round_bytes))

    def _meet(self, operation: int, weight: float) -> list[float]:
        others = [other for other in range(self._size) if other != self.links.place]
        return self.links.exchange(operation, Swap(dict.fromkeys(others, ()), lambda other, _: ()), weight)


class _Reduction:
    """One call's arrays, and the memory for the terms of its shares, by round, member and byte."""

    def __init__(
        self,
        links: Links,
        plan: _Plan,
        terms: Array,
        local_arrays: Sequence[Array],
        results: Sequence[Array],
        averaged: int,
    ) -> None:
        self._links = links
        self._plan = plan
        self._place, self._size = links.place, len(links.names)
        self._terms = terms
        self._local_arrays = local_arrays
        self._results = results
        self._averaged = averaged
        self.rounds = -(-len(plan.chunks) // self._size)

    def all_at_once(self, weight: float) -> float:
        """Every member sends all it has to every other, and each adds it up."""
        if not self._plan.chunks:
            return weight * self._size
        chunk = self._plan.chunks[0]
        buffers = [_bytes_of(_part(self._local_arrays, piece)) for piece in chunk]
        out = dict.fromkeys((other for other in range(self._size) if other != self._place), buffers)
        swap = Swap(out, lambda other, _: self._buffers(0, other, chunk))
        weights = self._links.exchange(self._plan.operation, swap, weight)
        self._add(0, chunk, fractions(weights))
        return sum(weights)

    def by_shares(self, weight: float) -> float:
        """In each round every member adds up a chunk of its own, and sends the others what it has added."""
        course = Shares(self, self._size, self._place, self._plan.rounds_at_once, weight)
        return sum(self._links.exchange(self._plan.operation, course, weight))

    def outgoing(self, segment: Segment, other: int) -> list[memoryview]:
        """The terms of this member for the share of another, or the results that this one has added."""
        if segment.is_result:
            return [_bytes_of(_part(self._results, piece)) for piece in self._chunk(segment.round, self._place)]
        return [_bytes_of(_part(self._local_arrays, piece)) for piece in self._chunk(segment.round, other)]

    def incoming(self, segment: Segment, other: int) -> list[memoryview]:
        """Room for what another member has to send in turn."""
        if segment.is_result:
            return [_bytes_of(_part(self._results, piece)) for piece in self._chunk(segment.round, other)]
        return self._buffers(segment.round, other, self._chunk(segment.round, self._place))

    def add(self, number: int, weights: Sequence[float]) -> None:
        """Add up this member's share of a round, all terms of which are there."""
        self._add(number, self._chunk(number, self._place), fractions(weights))

    def _add(self, number: int, chunk: list[Piece], parts: Sequence[float]) -> None:
        for piece in chunk:
            local_part = _part(self._local_arrays, piece)
            terms = [
                local_part if place == self._place else self._term(number, place, piece) for place in range(self._size)
            ]
            combine(terms, parts if piece.tensor < self._averaged else None, _part(self._results, piece))

    def _chunk(self, number: int, place: int) -> list[Piece]:
        index = number * self._size + place
        return self._plan.chunks[index] if index < len(self._plan.chunks) else []

    def _buffers(self, number: int, place: int, chunk: list[Piece]) -> list[memoryview]:
        return [_bytes_of(self._term(number, place, piece)) for piece in chunk]

    def _term(self, number: int, place: int, piece: Piece) -> Array:
        dtype, terms = self._local_arrays[piece.tensor].dtype, self._terms[number % len(self._terms), place]
        return terms[piece.offset : piece.offset + (piece.end - piece.begin) * dtype.itemsize].view(dtype)


def _part(arrays: Sequence[Array], piece: Piece) -> Array:
    return arrays[piece.tensor][piece.begin : piece.end]


def _bytes_of(values: Array) -> memoryview:
    return values.view(np.uint8).data
