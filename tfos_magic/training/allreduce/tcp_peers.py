"""Sums between hosts over plain TCP: every host adds up a share of the values, and sends its result to the others.

The shares go straight to the host that adds them, not around a ring: as many bytes (Rabenseifner 2004), two waits
instead of 2 (n - 1), terms in the order of hosts, and values of 16 bits are rounded once. The results of a round
travel together with the terms of the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfos_magic.training.allreduce import Array
from tfos_magic.training.allreduce.arithmetic import combine, fractions
from tfos_magic.training.allreduce.buckets import ALIGNMENT, Piece, aligned, plan_chunks
from tfos_magic.training.allreduce.links import Links
from tfos_magic.training.allreduce.results import LentArrays

SHARE_BYTES = 512 << 10
WHOLE_BYTES = 16 << 10
PAIR_BYTES = 2 << 20  # to another host alone as many bytes go either way, and a wait less
_KEPT_PLANS = 64


class _Plan(NamedTuple):
    """The tensors in chunks, of which each round takes one per host; ``whole`` where every host adds all by itself."""

    operation: int
    chunks: list[list[Piece]]
    share: int
    whole: bool


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
        if self._terms.size < self._size * plan.share:
            self._terms = np.empty(self._size * plan.share, np.uint8)
        terms = self._terms[: self._size * plan.share].reshape(self._size, plan.share)
        reduction = _Reduction(self.links, plan, terms, local_arrays, results, averaged)
        total = reduction.all_at_once(weight) if plan.whole else reduction.by_shares(weight)
        self.waited += reduction.waited
        return total

    def gather(self, local_arrays: Sequence[Array], operation: int) -> list[Array]:
        members = {self.links.place: self._streams.joined(local_arrays)}

        def room(other: int, length: float) -> list[memoryview]:
            (members[other],) = self._streams.empty([((int(length),), np.dtype(np.uint8))])
            return [members[other].data]

        out = {other: [array.data for array in local_arrays] for other in range(self._size)}
        self.links.swap(operation, out, room, float(members[self.links.place].size))
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
        return _Plan(zlib.crc32(repr(signature).encode()), plan_chunks(tensors, share), share, whole)


class _Reduction:
    """One call's arrays, and the memory for the terms of its share."""

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
        self.waited = 0.0
        self._others = [other for other in range(self._size) if other != self._place]

    def all_at_once(self, weight: float) -> float:
        """Every member sends all it has to every other, and each adds it up."""
        if not self._plan.chunks:
            return weight * self._size
        chunk = self._plan.chunks[0]
        buffers = [_bytes_of(_part(self._local_arrays, piece)) for piece in chunk]

        def room(other: int, _: float) -> list[memoryview]:
            return [_bytes_of(self._term(other, piece)) for piece in chunk]

        weights = self._links.swap(self._plan.operation, dict.fromkeys(self._others, buffers), room, weight)
        self.waited = self._links.waited
        self._add(chunk, fractions(weights))
        return sum(weights)

    def by_shares(self, weight: float) -> float:
        """Rounds of one chunk per member; the results of one round go with the terms of the next."""
        chunks, size = self._plan.chunks, self._size
        rounds = [chunks[begin : begin + size] for begin in range(0, len(chunks), size)]
        before: list[list[Piece]] = []
        weights: list[float] = []
        for now in [*rounds, []]:
            weights = self._swap(before, now, weight)
            self.waited = self.waited if before else self._links.waited
            self._add(_chunk(now, self._place), fractions(weights))
            before = now
        return sum(weights)

    def _swap(self, before: list[list[Piece]], now: list[list[Piece]], weight: float) -> list[float]:
        results = [_bytes_of(_part(self._results, piece)) for piece in _chunk(before, self._place)]
        out = {
            other: [*results, *(_bytes_of(_part(self._local_arrays, piece)) for piece in _chunk(now, other))]
            for other in self._others
        }

        def room(other: int, _: float) -> list[memoryview]:
            into = [_bytes_of(_part(self._results, piece)) for piece in _chunk(before, other)]
            return into + [_bytes_of(self._term(other, piece)) for piece in _chunk(now, self._place)]

        return self._links.swap(self._plan.operation, out, room, weight)

    def _add(self, chunk: list[Piece], parts: Sequence[float]) -> None:
        for piece in chunk:
            local_part = _part(self._local_arrays, piece)
            terms = [local_part if place == self._place else self._term(place, piece) for place in range(self._size)]
            combine(terms, parts if piece.tensor < self._averaged else None, _part(self._results, piece))

    def _term(self, place: int, piece: Piece) -> Array:
        dtype = self._local_arrays[piece.tensor].dtype
        return self._terms[place, piece.offset : piece.offset + (piece.end - piece.begin) * dtype.itemsize].view(dtype)


def _part(arrays: Sequence[Array], piece: Piece) -> Array:
    return arrays[piece.tensor][piece.begin : piece.end]


def _chunk(chunks: list[list[Piece]], place: int) -> list[Piece]:
    return chunks[place] if place < len(chunks) else []


def _bytes_of(values: Array) -> memoryview:
    return values.view(np.uint8).data
