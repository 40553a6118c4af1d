"""Memory that the ranks of one host share: the sum costs a copy and an addition instead of a trip through gRPC.

Every rank writes its tensors into a slot of its own; when all have met, two ranks each add up both slots, and more
ranks each add up a share and take the others' shares from a common result (reduce-scatter and all-gather, Rabenseifner
2004). Terms are added in the order of ranks, so that all ranks get the same bits. A rank has two slots and fills them
in turn: it writes to a slot again only after a meeting to which its peers came when they no longer read it.
"""

from __future__ import annotations

import logging
import mmap
import os
import socket
import threading
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.wires import PeerLost, Wire
from tfos_magic.training.wires.layout import empty_like, plan_chunks
from tfos_magic.training.wires.mesh import TOKEN_BYTES, Invitation, Mesh, host, join, listen, nameless_file

SLOT_BYTES = 4 << 20
SCATTER_BYTES = 64 << 10
SETUP_SECONDS = 10.0
_KEPT_PLANS = 64

_log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]


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


class SharedMemoryWire:
    """Sums in memory that ``mesh`` keeps in step. ``memory`` holds two slots per rank and one for results."""

    def __init__(self, rank: int, size: int, mesh: Mesh, memory: mmap.mmap) -> None:
        self.mesh = mesh
        self._rank = rank
        self._size = size
        slots = np.frombuffer(memory, np.uint8).reshape(2 * size + 1, SLOT_BYTES)
        self._slots = slots[:-1].reshape(2, size, SLOT_BYTES)
        self._result = slots[-1]
        self._turn = 0
        self._plans: dict[Any, tuple[int, list[_Chunk]]] = {}
        self._lock = threading.Lock()
        # A graph keeps the function it calls for ever, so there is one function for all graphs.
        self._function = self.sum_arrays

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            return [tf.convert_to_tensor(total) for total in self.sum_arrays(*(np.asarray(t) for t in tensors))]
        totals = tf.numpy_function(self._function, tensors, [tensor.dtype for tensor in tensors])
        for tensor, total in zip(tensors, totals, strict=True):
            total.set_shape(tensor.shape)
        return totals

    def sum_rows(self, tensor: tf.Tensor, offset: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        room = total - offset - tf.shape(tensor)[0]
        return self.sum([tf.pad(tensor, [[offset, room], *([0, 0] for _ in tensor.shape[1:])])])[0]

    def align(self) -> None:
        """Nothing is numbered here."""

    def explain(self, error: Exception) -> str | None:
        return self.mesh.failure or None

    def abort(self, reason: str) -> None:
        self.mesh.abort(reason)

    def close(self) -> None:
        self.mesh.close()
        self._plans.clear()

    def sum_arrays(self, *arrays: Array) -> list[Array]:
        """Sum NumPy arrays over the ranks. Raises :class:`PeerLost` when a peer is lost or late."""
        totals = empty_like(arrays)
        own, sums = [array.reshape(-1) for array in arrays], [total.reshape(-1) for total in totals]
        try:
            with self._lock:
                self._exchange(own, sums)
        except PeerLost:
            raise
        except BaseException as error:
            self.mesh.abort(f"rank {self._rank} failed: {type(error).__name__}: {error}")
            raise
        return totals

    def _exchange(self, own: list[Array], sums: list[Array]) -> None:
        signature = (self._turn, *((array.size, array.dtype) for array in own))
        operation, chunks = self._plans.get(signature) or self._plan(signature)
        self._turn = (self._turn + len(chunks)) % 2
        for chunk in chunks:
            for place in chunk.places:
                np.copyto(place.terms[self._rank], own[place.tensor][place.rows])
            self.mesh.meet(operation)
            if chunk.scatter:
                self._add_shares(chunk, operation, sums)
            else:
                for place in chunk.places:
                    _add(place.terms, sums[place.tensor][place.rows])

    def _add_shares(self, chunk: _Chunk, operation: int, sums: list[Array]) -> None:
        for place in chunk.places:
            count = place.total.size
            share = slice(count * self._rank // self._size, count * (self._rank + 1) // self._size)
            _add([term[share] for term in place.terms], place.total[share])
        self.mesh.meet(operation)
        for place in chunk.places:
            np.copyto(sums[place.tensor][place.rows], place.total)

    def _plan(self, signature: Any) -> tuple[int, list[_Chunk]]:
        turn, *tensors = signature
        chunks = []
        for pieces in plan_chunks([(count, dtype.itemsize) for count, dtype in tensors], SLOT_BYTES):
            places, used = [], 0
            for piece in pieces:
                dtype = tensors[piece.tensor][1]
                used = piece.offset + (piece.end - piece.begin) * dtype.itemsize
                terms = tuple(slot[piece.offset : used].view(dtype) for slot in self._slots[turn])
                total = self._result[piece.offset : used].view(dtype)
                places.append(_Place(piece.tensor, slice(piece.begin, piece.end), terms, total))
            chunks.append(_Chunk(tuple(places), self._size > 2 and used > SCATTER_BYTES))
            turn = 1 - turn
        if len(self._plans) >= _KEPT_PLANS:  # rows in changing numbers have a new plan each time
            self._plans.pop(next(iter(self._plans)))
        plan = zlib.crc32(repr(tensors).encode()), chunks
        self._plans[signature] = plan
        return plan


def _add(terms: Sequence[Array], total: Array) -> None:
    np.add(terms[0], terms[1], out=total)
    for term in terms[2:]:
        np.add(total, term, out=total)


def share_memory(rank: int, size: int, ring: Wire) -> SharedMemoryWire | None:
    """Make a wire of shared memory between ranks that ``ring`` connects, or None, on all ranks, where any cannot.

    Every rank must call it. Waits at most ``SETUP_SECONDS`` for peers that cannot reach this rank's memory.
    """
    wire = None
    with ExitStack() as opened:
        own = Invitation.fresh()
        listener = _listen(own, opened) if rank == 0 else None
        invitation = _taken_from_root(own, listener is not None, ring)
        if invitation is not None:
            wire = _connect(rank, size, invitation, listener)
    ready = ring.sum([tf.constant(int(wire is not None), tf.int64)])[0]
    if int(ready) == size:
        return wire
    if wire is not None:
        wire.close()
    return None


def _listen(invitation: Invitation, opened: ExitStack) -> socket.socket | None:
    try:
        return opened.enter_context(listen(invitation))
    except OSError as error:
        _say(0, error)
        return None


def _taken_from_root(invitation: Invitation, is_root: bool, ring: Wire) -> Invitation | None:
    """The invitation of rank 0, which alone listens; None where it cannot."""
    words = np.frombuffer(invitation.name + invitation.secret, np.int64) * is_root
    *words, listening = ring.sum([tf.constant([*words, int(is_root)], tf.int64)])[0].numpy().tolist()
    raw = np.array(words, np.int64).tobytes()
    return Invitation(raw[:TOKEN_BYTES], raw[TOKEN_BYTES:]) if listening else None


def _connect(rank: int, size: int, invitation: Invitation, listener: socket.socket | None) -> SharedMemoryWire | None:
    room = (2 * size + 1) * SLOT_BYTES
    try:
        with ExitStack() as opened:
            if listener is not None:
                file = nameless_file(room)
                opened.callback(os.close, file)
                mesh = host(listener, invitation, size, file, SETUP_SECONDS)
            else:
                mesh, file = join(invitation, rank, size, SETUP_SECONDS)
                opened.callback(os.close, file)
            opened.callback(mesh.close)
            memory = mmap.mmap(file, room)
            opened.pop_all()
        os.close(file)
        return SharedMemoryWire(rank, size, mesh, memory)
    except OSError as error:
        _say(rank, error)
        return None


def _say(rank: int, error: OSError) -> None:
    _log.info("rank %d cannot share memory with its peers (%s); TensorFlow's ring is used", rank, error)
