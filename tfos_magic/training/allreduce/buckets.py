"""Where tensors lie in the shared memory: cut into pieces that fill its slots one chunk after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Tensors start at multiples of this, in the slots and in results: TensorFlow takes over aligned arrays without a copy.
ALIGNMENT = 64


@dataclass(frozen=True)
class Piece:
    """Elements ``[begin, end)`` of the flat tensor ``tensor``, which lie at byte ``offset`` of a slot."""

    tensor: int
    begin: int
    end: int
    offset: int


def plan_chunks(tensors: Sequence[tuple[int, int]], slot_bytes: int) -> list[list[Piece]]:
    """Cut tensors, given as (elements, bytes of one element), into chunks that each fit a slot.

    A chunk is filled before the next is begun; ``slot_bytes`` is a multiple of ``ALIGNMENT``.
    """
    chunks: list[list[Piece]] = []
    free = 0
    for index, (count, width) in enumerate(tensors):
        begin = 0
        while begin < count:
            if free < width:
                chunks.append([])
                free = slot_bytes
            end = min(count, begin + free // width)
            chunks[-1].append(Piece(index, begin, end, slot_bytes - free))
            free -= aligned((end - begin) * width)
            begin = end
    return chunks


def aligned(size: int) -> int:
    """``size`` bytes rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
