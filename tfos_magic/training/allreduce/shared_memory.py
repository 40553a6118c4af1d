"""Memory that the ranks of one host share: the sum costs a copy and an addition instead of a trip through sockets.

Every rank writes its tensors into a slot of its own, and beside it one number: the weight of what it has to add, or
the length of what it has to show. When all have met, two ranks each add up both slots, and more ranks each add up a
share and take the others' shares from a common result (reduce-scatter and all-gather, Rabenseifner 2004). Terms are
added in the order of ranks, so that all ranks get the same bits. A rank has two slots and fills them in turn: it
writes to a slot again only after a meeting to which its peers came when they no longer read it.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfos_magic.training.allreduce import Array
from tfos_magic.training.allreduce.arithmetic import combine, fractions
from tfos_magic.training.allreduce.buckets import plan_chunks
from tfos_magic.training.allreduce.result_memory import LentArrays
from tfos_magic.training.allreduce.unix_peers import GroupInvitation, UnixPeers, host, join, listen, nameless_file

SLOT_BYTES = 4 << 20
_SLOTS_BYTES = 64 << 20
_SMALLEST_SLOT = 64 << 10
SCATTER_BYTES = 64 << 10
SETUP_SECONDS = 10.0
_NUMBERS_BYTES = 4096
_KEPT_PLANS = 64

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Place:
    """A piece with the memory it has: ``terms`` by rank, their ``total`` where ranks share the work."""

    tensor: int
    rows: slice
    terms: tuple[Array, ...]
    total: Array


@dataclass(frozen=True)
class _Chunk:
    places: tuple[_Place, ...]
    scatter: bool


class SharedMemory:
    """Sums in memory that ``mesh`` keeps in step, which :func:`memory_bytes` says the size of.

    ``rank`` and ``size`` are those of the group on this host.
    """

    name = "shared memory"

    def __init__(self, rank: int, size: int, mesh: UnixPeers, memory: mmap.mmap) -> None:
        self.mesh = mesh
        self.rank = rank
        self.size = size
        self.sent = 0
        self.waited = 0.0
        self._numbers = np.frombuffer(memory, np.float64, 2 * size).reshape(2, size)
        self._slot_bytes = slot_bytes(size)
        slots = np.frombuffer(memory, np.uint8, offset=_NUMBERS_BYTES).reshape(2 * size + 1, self._slot_bytes)
        self._slots = slots[:-1].reshape(2, size, self._slot_bytes)
        self._result = slots[-1]
        self._turn = 0
        self._plans: dict[Any, tuple[int, list[_Chunk]]] = {}
        self._streams = LentArrays()

    @property
    def failure(self) -> str:
        return self.mesh.failure

    def abort(self, reason: str) -> None:
        self.mesh.abort(reason)

    def close(self) -> None:
        self.mesh.close()
        self._plans.clear()

    def reduce(self, local_arrays: Sequence[Array], results: Sequence[Array], averaged: int, weight: float) -> float:
        operation, chunks = self._plan_of(local_arrays, averaged)
        weights = self._numbers[self._turn]
        weights[self.rank] = weight
        self._turn = (self._turn + len(chunks)) % 2
        total, parts = 0.0, None
        for chunk in chunks:
            self._fill(chunk, local_arrays)
            self._meet(operation, first=parts is None)
            if parts is None:
                total, parts = float(weights.sum()), fractions(weights.tolist())
            self._combine(chunk, operation, results, averaged, parts)
        return total

    def gather(self, local_arrays: Sequence[Array], operation: int) -> list[Array]:
        stream = self._streams.joined(local_arrays)
        lengths = self._numbers[self._turn]
        lengths[self.rank] = stream.size
        self.sent += stream.size
        slots = self._share(stream[: self._slot_bytes], operation, first=True)
        sizes = [int(length) for length in lengths]
        if max(sizes) <= self._slot_bytes:
            return [slot[:size] for slot, size in zip(slots, sizes, strict=True)]
        streams = self._streams.empty([((size,), stream.dtype) for size in sizes])
        streams[self.rank] = stream
        for begin in range(0, max(sizes), self._slot_bytes):
            if begin:
                slots = self._share(stream[begin : begin + self._slot_bytes], operation)
            for rank, slot in enumerate(slots):
                if rank != self.rank:
                    part = streams[rank][begin : begin + self._slot_bytes]
                    np.copyto(part, slot[: part.size])
        return streams

    def _share(self, part: Array, operation: int, first: bool = False) -> Array:
        """Show ``part`` to the peers and give the slots of all, which hold theirs until the next meeting but one."""
        slots = self._slots[self._turn]
        self._turn = 1 - self._turn
        slots[self.rank, : part.size] = part
        self._meet(operation, first)
        return slots

    def _meet(self, operation: int, first: bool) -> None:
        """Meet the others; for the ``first`` time in a call, they may have to be waited for."""
        begun = time.monotonic()
        self.mesh.meet(operation)
        self.waited += time.monotonic() - begun if first else 0.0

    def spread(self, local_arrays: Sequence[Array], results: Sequence[Array], waited: float) -> None:
        """Copy rank 0's ``local_arrays`` into ``results`` on the other ranks, whose own may hold anything.

        All of them have waited for as long as rank 0 has ``waited`` before.
        """
        operation, chunks = self._plan_of(local_arrays, -1)
        numbers = self._numbers[self._turn]
        numbers[self.rank] = waited
        self._turn = (self._turn + len(chunks)) % 2
        for number, chunk in enumerate(chunks):
            if self.rank == 0:
                self._fill(chunk, local_arrays)
            self.mesh.meet(operation)
            if number == 0:
                self.waited += float(numbers[0])
            if self.rank != 0:
                for place in chunk.places:
                    np.copyto(results[place.tensor][place.rows], place.terms[0])

    def _fill(self, chunk: _Chunk, local_arrays: Sequence[Array]) -> None:
        for place in chunk.places:
            slot = place.terms[self.rank]
            np.copyto(slot, local_arrays[place.tensor][place.rows])
            self.sent += slot.nbytes

    def _combine(
        self, chunk: _Chunk, operation: int, results: Sequence[Array], averaged: int, parts: Sequence[float]
    ) -> None:
        if not chunk.scatter:
            for place in chunk.places:
                result = results[place.tensor][place.rows]
                combine(place.terms, parts if place.tensor < averaged else None, result)
            return
        for place in chunk.places:
            count = place.total.size
            share = slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)
            terms = [term[share] for term in place.terms]
            combine(terms, parts if place.tensor < averaged else None, place.total[share])
            self.sent += place.total[share].nbytes
        self.mesh.meet(operation)
        for place in chunk.places:
            np.copyto(results[place.tensor][place.rows], place.total)

    def _plan_of(self, local_arrays: Sequence[Array], averaged: int) -> tuple[int, list[_Chunk]]:
        signature = (self._turn, averaged, *((array.size, array.dtype) for array in local_arrays))
        return self._plans.get(signature) or self._plan(signature)

    def _plan(self, signature: Any) -> tuple[int, list[_Chunk]]:
        turn, averaged, *tensors = signature
        chunks = []
        for pieces in plan_chunks([(count, dtype.itemsize) for count, dtype in tensors], self._slot_bytes):
            places, used = [], 0
            for piece in pieces:
                dtype = tensors[piece.tensor][1]
                used = piece.offset + (piece.end - piece.begin) * dtype.itemsize
                terms = tuple(slot[piece.offset : used].view(dtype) for slot in self._slots[turn])
                total = self._result[piece.offset : used].view(dtype)
                places.append(_Place(piece.tensor, slice(piece.begin, piece.end), terms, total))
            chunks.append(_Chunk(tuple(places), self.size > 2 and used > SCATTER_BYTES))
            turn = 1 - turn
        if len(self._plans) >= _KEPT_PLANS:  # rows in changing numbers have a new plan each time
            self._plans.pop(next(iter(self._plans)))
        plan = zlib.crc32(repr((averaged, tensors)).encode()), chunks
        self._plans[signature] = plan
        return plan


def slot_bytes(size: int) -> int:
    """Bytes of a slot: for many ranks fewer, so that the slots of all have about 64 MiB. The system takes memory for
    what is written, so that a small model costs what its gradients do."""
    fair = _SLOTS_BYTES // (2 * size) // _SMALLEST_SLOT * _SMALLEST_SLOT
    return min(SLOT_BYTES, max(_SMALLEST_SLOT, fair))


def memory_bytes(size: int) -> int:
    """Bytes that ``size`` ranks share: a number, two slots for each rank and one for results."""
    return _NUMBERS_BYTES + (2 * size + 1) * slot_bytes(size)


def open_listener(invitation: GroupInvitation) -> socket.socket | None:
    """The socket on which a host's first rank awaits the others; None where the system has none."""
    try:
        return listen(invitation)
    except OSError as error:
        _log.info("no socket for sharing memory: %s", error)
        return None


def share_memory(
    ranks: Sequence[int], rank: int, invitation: GroupInvitation, listener: socket.socket | None
) -> SharedMemory | None:
    """Share memory between ``ranks`` of one host, the first of which has the ``listener``; None where that cannot be.

    Every one of them must call it. Waits at most ``SETUP_SECONDS`` for the others.
    """
    size, place = len(ranks), ranks.index(rank)
    try:
        with ExitStack() as opened:
            if listener is not None:
                file = nameless_file(memory_bytes(size))
                opened.callback(os.close, file)
                mesh = host(listener, invitation, ranks, file, SETUP_SECONDS)
            else:
                mesh, file = join(invitation, place, ranks, SETUP_SECONDS)
                opened.callback(os.close, file)
            opened.callback(mesh.close)
            memory = mmap.mmap(file, memory_bytes(size))
            opened.pop_all()
        os.close(file)
        return SharedMemory(place, size, mesh, memory)
    except OSError as error:
        _log.info("rank %d cannot share memory with its peers: %s", rank, error)
        return None
