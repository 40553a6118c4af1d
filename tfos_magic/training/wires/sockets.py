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

from tfos_magic.training.wires import Array
from tfos_magic.training.wires.arithmetic import combine, fractions
from tfos_magic.training.wires.layout import Piece, aligned, plan_chunks
from tfos_magic.training.wires.links import Links

SHARE_BYTES = 1 << 20
WHOLE_BYTES = 16 << 10
_KEPT_PLANS = 64


class _Plan(NamedTuple):
    """The tensors in chunks, of which each round takes one per host; ``whole`` where every host adds all by itself."""

    operation: int
    chunks: list[list[Piece]]
    share: int
    whole: bool


class SocketExchange:
    """Reduces arrays over the members that ``links`` connects. Works in buffers that it keeps."""

    name = "TCP sockets"

    def __init__(self, links: Links) -> None:
        self.links = links
        self._size = len(links.names)
        self._buffers = [np.zeros(0, np.uint8), np.zeros(0, np.uint8), np.zeros(0, np.uint8)]
        self._plans: dict[Any, _Plan] = {}

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

    def reduce(self, own: Sequence[Array], results: Sequence[Array], averaged: int, weight: float) -> float:
        plan = self._plan_of(own, averaged)
        reduction = _Reduction(self.links, plan, self._room(plan), own, results, averaged)
        return reduction.all_at_once(weight) if plan.whole else reduction.by_shares(weight)

    def _room(self, plan: _Plan) -> list[Array]:
        """Memory for one round: this member's chunks, the terms of its share, and two rounds of results."""
        room = self._size * plan.share
        if self._buffers[0].size < room:
            self._buffers = [np.empty(room, np.uint8), np.empty(room, np.uint8), np.empty(2 * room, np.uint8)]
        return self._buffers

    def _plan_of(self, own: Sequence[Array], averaged: int) -> _Plan:
        signature = (averaged, *((array.size, array.dtype) for array in own))
        if signature not in self._plans:
            if len(self._plans) >= _KEPT_PLANS:  # rows in changing numbers have a new plan each time
                self._plans.pop(next(iter(self._plans)))
            self._plans[signature] = self._plan(signature)
        return self._plans[signature]

    def _plan(self, signature: Any) -> _Plan:
        tensors = [(count, dtype.itemsize) for count, dtype in signature[1:]]
        total = sum(aligned(count * width) for count, width in tensors)
        whole = total <= WHOLE_BYTES
        share = aligned(total) if whole else min(SHARE_BYTES, aligned(-(-total // self._size)))
        return _Plan(zlib.crc32(repr(signature).encode()), plan_chunks(tensors, max(share, 64)), max(share, 64), whole)


class _Reduction:
    """One call's arrays and the memory they pass through."""

    def __init__(
        self,
        links: Links,
        plan: _Plan,
        buffers: Sequence[Array],
        own: Sequence[Array],
        results: Sequence[Array],
        averaged: int,
    ) -> None:
        self._links = links
        self._plan = plan
        self._place, self._size = links.place, len(links.names)
        room = self._size * plan.share
        self._out = buffers[0][:room].reshape(self._size, plan.share)
        self._terms = buffers[1][:room].reshape(self._size, plan.share)
        self._done = buffers[2][: 2 * room].reshape(2, self._size, plan.share)
        self._own = own
        self._results = results
        self._averaged = averaged
        self._others = [other for other in range(self._size) if other != self._place]

    def all_at_once(self, weight: float) -> float:
        """Every member sends all it has to every other, and each adds it up."""
        if not self._plan.chunks:
            return weight * self._size
        chunk = self._plan.chunks[0]
        self._fill(chunk, self._terms[self._place])
        length = _length(chunk, self._own)
        whole = {other: [_bytes_of(self._terms[self._place, :length])] for other in self._others}
        into = {other: [_bytes_of(self._terms[other, :length])] for other in self._others}
        weights = self._links.swap(self._plan.operation, whole, into, weight)
        self._add(chunk, fractions(weights), self._done[0, self._place])
        self._take(chunk, self._done[0, self._place])
        return sum(weights)

    def by_shares(self, weight: float) -> float:
        """Rounds of one chunk per member; the results of one round go with the terms of the next."""
        chunks, size = self._plan.chunks, self._size
        rounds = [chunks[begin : begin + size] for begin in range(0, len(chunks), size)]
        before: list[list[Piece]] = []
        weights: list[float] = []
        for number, now in enumerate([*rounds, []]):
            for place, chunk in enumerate(now):
                self._fill(chunk, self._terms[place] if place == self._place else self._out[place])
            weights = self._swap(number, before, now, weight)
            for place, chunk in enumerate(before):
                self._take(chunk, self._done[(number - 1) % 2, place])
            if self._place < len(now):
                self._add(now[self._place], fractions(weights), self._done[number % 2, self._place])
            before = now
        return sum(weights)

    def _swap(self, number: int, before: list[list[Piece]], now: list[list[Piece]], weight: float) -> list[float]:
        done = self._done[(number - 1) % 2]
        out: dict[int, list[memoryview]] = {other: [] for other in self._others}
        into: dict[int, list[memoryview]] = {other: [] for other in self._others}
        for other in self._others:
            if self._place < len(before):
                out[other].append(_bytes_of(done[self._place, : _length(before[self._place], self._own)]))
            if other < len(before):
                into[other].append(_bytes_of(done[other, : _length(before[other], self._own)]))
            if other < len(now):
                out[other].append(_bytes_of(self._out[other, : _length(now[other], self._own)]))
            if self._place < len(now):
                into[other].append(_bytes_of(self._terms[other, : _length(now[self._place], self._own)]))
        return self._links.swap(self._plan.operation, out, into, weight)

    def _fill(self, chunk: list[Piece], memory: Array) -> None:
        for piece in chunk:
            values = self._own[piece.tensor][piece.begin : piece.end]
            np.copyto(_view(memory, piece, values.dtype), values)

    def _add(self, chunk: list[Piece], parts: Sequence[float], memory: Array) -> None:
        for piece in chunk:
            dtype = self._own[piece.tensor].dtype
            terms = [_view(self._terms[place], piece, dtype) for place in range(self._size)]
            combine(terms, parts if piece.tensor < self._averaged else None, _view(memory, piece, dtype))

    def _take(self, chunk: list[Piece], memory: Array) -> None:
        for piece in chunk:
            result = self._results[piece.tensor][piece.begin : piece.end]
            np.copyto(result, _view(memory, piece, result.dtype))


def _view(memory: Array, piece: Piece, dtype: Any) -> Array:
    return memory[piece.offset : piece.offset + (piece.end - piece.begin) * dtype.itemsize].view(dtype)


def _length(chunk: list[Piece], own: Sequence[Array]) -> int:
    last = chunk[-1]
    return last.offset + (last.end - last.begin) * own[last.tensor].dtype.itemsize


def _bytes_of(memory: Array) -> memoryview:
    return memory.data
