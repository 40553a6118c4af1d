"""A reducer tried on a few rows: at once, in two parts, and with the parts the other way round."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfos_magic.errors import UsageError
from tfos_magic.frames.checks.sampling import FIRST, MOST_BLOCKS, SAMPLE, sample_of
from tfos_magic.frames.tensor_function import AGGREGATE, Program


class ReducerCheck:
    """Tries a task's reducer on its first block, and on a few more while their rows are all alike."""

    def __init__(self, compiled: Any, program: Program) -> None:
        self._compiled = compiled
        self._program = program
        self._left = MOST_BLOCKS

    def __call__(self, blocks: list[Any]) -> None:
        """Raise :class:`UsageError` when the reducer depends on how rows are cut into blocks or on their order."""
        rows = sample_of(blocks) if self._left else []
        if not rows:
            return
        sample = [np.resize([*values, *values[::-1]], (SAMPLE, *values.shape[1:])) for values in rows]
        self._left = 0 if all((block != block[0]).any() for block in sample) else self._left - 1
        whole = self._reduced(sample)
        first = self._reduced([block[:FIRST] for block in sample])
        last = self._reduced([block[FIRST:] for block in sample])
        self._compare(sample, whole, self._reduced(_pairs(first, last)), "in two parts")
        if _no_ties(rows):
            self._compare(sample, whole, self._reduced(_pairs(last, first)), "in two parts, the second one first")

    def _reduced(self, blocks: list[Any]) -> list[Any]:
        if self._program.mode != AGGREGATE:
            made = self._compiled(blocks)
            return [made[spec.name] for spec in self._program.inputs]
        made = self._compiled([block[np.newaxis] for block in blocks])
        return [made[spec.name][0] for spec in self._program.inputs]

    def _compare(self, sample: list[Any], whole: list[Any], parts: list[Any], how: str) -> None:
        for spec, rows, one, other in zip(self._program.inputs, sample, whole, parts, strict=True):
            if not _agree(rows, one, other):
                raise UsageError(
                    f"the reducer makes {spec.name!r} {_short(one)} of {len(rows)} rows at once and {_short(other)} of "
                    f"the same rows {how}: rows come in blocks of any size and order, so it has to be associative and "
                    "commutative. Instead of a mean or a count reduce sums, of values and of a column of ones, and "
                    "divide them afterwards"
                )


def _no_ties(rows: list[Any]) -> bool:
    """True when no two rows have an equal element, between which even a maximum's index depends on the order."""
    ordered = [np.sort(block.reshape(len(block), -1), axis=0) for block in rows]
    return all((block[1:] != block[:-1]).all() for block in ordered)


def _pairs(first: list[Any], second: list[Any]) -> list[Any]:
    return [np.stack(pair) for pair in zip(first, second, strict=True)]


def _agree(rows: Any, one: Any, other: Any) -> bool:
    """Equal, for floating-point numbers as far as sums in other orders are; what overflowed cannot be told."""
    if one.dtype.kind != "f" or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return one.dtype.kind == "f" or bool(np.array_equal(one, other))
    scale = max(np.abs(each).max(initial=0) for each in (rows.astype(np.float64), one, other))
    return bool((np.abs(one.astype(np.float64) - other) <= np.sqrt(np.finfo(one.dtype).eps) * scale).all())


def _short(value: Any) -> str:
    return np.array2string(value, threshold=4, edgeitems=1, separator=", ").replace("\n", "")
