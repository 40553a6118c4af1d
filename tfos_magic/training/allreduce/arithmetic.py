"""Adding up what the ranks sent.

Terms are added in the order of ranks, so that all ranks get the same bits, and in blocks that stay in cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfos_magic.training.allreduce import Array

BLOCK = 1 << 15


def fractions(weights: Sequence[float]) -> tuple[float, ...]:
    """Each rank's part of the sum of ``weights``; all zero where that is zero."""
    total = sum(weights)
    return tuple(weight / total if total else 0.0 for weight in weights)


@np.errstate(over="ignore", invalid="ignore")  # gradients of half precision overflow now and then
def combine(terms: Sequence[Array], parts: Sequence[float] | None, result: Array) -> None:
    """Put the sum of ``terms`` into ``result``, or with ``parts`` their mean, where each term counts by its part.

    All are flat, of one length and dtype. Terms of 16 bits are added in float32 and rounded once. A term whose part is
    zero is not looked at.
    """
    if parts is not None:
        terms = [term for term, part in zip(terms, parts, strict=True) if part]
        parts = [part for part in parts if part]
    if not terms:
        result.fill(0)
        return
    exact = np.dtype(np.float32) if result.dtype.itemsize == 2 else result.dtype
    scratch = np.empty((2, min(BLOCK, result.size)), exact)
    for begin in range(0, result.size, BLOCK):
        out = result[begin : begin + BLOCK]
        total = out if exact == out.dtype else scratch[0, : out.size]
        _add_block([term[begin : begin + BLOCK] for term in terms], parts, total, scratch[1, : out.size])
        if total is not out:
            out[...] = total


def _add_block(terms: Sequence[Array], parts: Sequence[float] | None, total: Array, scratch: Array) -> None:
    if parts is not None and any(part != parts[0] for part in parts):
        np.multiply(terms[0], parts[0], out=total, dtype=total.dtype)
        for term, part in zip(terms[1:], parts[1:], strict=True):
            np.multiply(term, part, out=scratch, dtype=total.dtype)
            np.add(total, scratch, out=total)
        return
    if len(terms) == 1:
        np.copyto(total, terms[0])
    else:
        np.add(terms[0], terms[1], out=total, dtype=total.dtype)
    for term in terms[2:]:
        np.add(total, term, out=total, dtype=total.dtype)
    if parts is not None and parts[0] != 1.0:
        np.multiply(total, parts[0], out=total)
