"""The few rows that a model or a reducer is tried on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

SAMPLE, FIRST = 7, 2
"""Rows of a sample and of the first of its two parts, which differ in size: of equal ones even a mean of means would
be right."""

MOST_BLOCKS = 4
"""Blocks that are tried while their rows are all alike."""


def sample_of(blocks: Sequence[Any]) -> list[Any]:
    """A few rows from all over the blocks, without NaN and infinities; empty where all have them."""
    count = len(blocks[0])
    picked = np.linspace(0, count - 1, min(count, SAMPLE)).astype(int)
    for block in blocks:
        if block.dtype.kind == "f":
            picked = picked[np.isfinite(block[picked].reshape(len(picked), -1)).all(axis=1)]
    return [block[picked] for block in blocks] if len(picked) else []
