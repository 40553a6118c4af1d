"""Memory for results, which is taken again: fresh pages of a large sum cost more than adding it up."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfos_magic.training.allreduce import Array
from tfos_magic.training.allreduce.buckets import ALIGNMENT, aligned

KEPT_BYTES = 1 << 20
_IDLE_CALLS = 256

Kind = tuple[tuple[int, ...], np.dtype[Any]]


@dataclass(eq=False)
class _Block:
    """Memory, and the array through which it was last lent: free when nothing holds that or a view of it."""

    memory: Array
    lent: weakref.ref[Array]
    call: int


class LentArrays:
    """Lends arrays, whose memory may become that of tensors: TensorFlow holds an array as long as it uses it.

    What is smaller than ``KEPT_BYTES`` is not kept, nor what was of no use for long.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._calls = 0

    def empty(self, kinds: Sequence[Kind]) -> list[Array]:
        """Uninitialised arrays of these shapes and dtypes, each aligned, in one piece of memory."""
        sizes = [dtype.itemsize * math.prod(shape) for shape, dtype in kinds]
        memory = self._memory(sum(aligned(size) for size in sizes) + ALIGNMENT)
        offset = -memory.ctypes.data % ALIGNMENT
        results = []
        for (shape, dtype), size in zip(kinds, sizes, strict=True):
            results.append(memory[offset : offset + size].view(dtype).reshape(shape))
            offset += aligned(size)
        return results

    def joined(self, parts: Sequence[Array]) -> Array:
        """The bytes ``parts``, one after another."""
        (whole,) = self.empty([((sum(part.size for part in parts),), np.dtype(np.uint8))])
        return np.concatenate(parts, out=whole)

    def _memory(self, size: int) -> Array:
        if size < KEPT_BYTES:
            return np.empty(size, np.uint8)
        self._calls += 1
        self._blocks = [block for block in self._blocks if self._calls - block.call <= _IDLE_CALLS]
        fitting = (b for b in self._blocks if size <= b.memory.size <= 2 * size and b.lent() is None)
        if (block := next(fitting, None)) is None:
            memory = np.empty(size, np.uint8)
            block = _Block(memory, weakref.ref(memory), 0)
            self._blocks.append(block)
        lent: Array = np.frombuffer(block.memory.data, np.uint8)
        block.lent, block.call = weakref.ref(lent), self._calls
        return lent
