"""How a number that a step computes of its rows follows from the same number of parts of these rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


class Law(IntEnum):
    """``CONSTANT`` does not depend on the rows; ``UNKNOWN`` is zero, or not finite, or fits
    both a mean and a sum, so that it may be any."""

    UNKNOWN = 0
    CONSTANT = 1
    MEAN = 2
    SUM = 3
    MIXED = 4


@dataclass(frozen=True)
class StepValues:
    """What a step computed of ``rows`` rows, by name: each an array of any shape, the same in all.

    ``rounding`` are errors that values may have beside those that follow from their own size.
    """

    rows: int
    values: dict[Any, Numbers]
    rounding: dict[Any, float] = field(default_factory=dict)


def laws_of(
    whole: StepValues, parts: Sequence[StepValues], tolerance: float, floors: dict[Any, float]
) -> dict[Any, Law]:
    """The law of each value, of those named ``rows`` whether each row has its own.

    ``floors`` are sizes below which a value's differences are taken for rounding.
    """
    laws = {}
    for name, value in whole.values.items():
        if not all(name in part.values for part in parts):
            continue
        if name[0] == "rows":
            laws[name] = _law_of_rows(value, [part.values[name] for part in parts], tolerance)
            continue
        shares = [(part.rows / whole.rows, part.values[name]) for part in parts]
        laws[name] = _law(value, shares, tolerance, floors.get(name, 0.0), whole.rounding.get(name, 0.0))
    return laws


def _law(
    whole: Numbers, parts: Sequence[tuple[float, Numbers]], tolerance: float, floor: float, rounding: float
) -> Law:
    arrays = [whole, *(value for _, value in parts)]
    if not all(np.isfinite(array).all() for array in arrays):
        return Law.UNKNOWN
    size = max((float(np.abs(array).max(initial=0.0)) for array in arrays), default=0.0)
    allowed = max(tolerance * max(size, floor), rounding)
    if size <= max(allowed, float(np.finfo(np.float32).tiny)):
        return Law.UNKNOWN

    def agrees(value: Any) -> bool:
        return bool(np.abs(whole - value).max(initial=0.0) <= allowed)

    if all(agrees(value) for _, value in parts):
        return Law.CONSTANT
    is_mean, is_sum = agrees(sum(share * value for share, value in parts)), agrees(sum(value for _, value in parts))
    if is_mean and is_sum:  # by chance, as clipped numbers of opposite signs may be
        return Law.UNKNOWN
    return Law.MEAN if is_mean else Law.SUM if is_sum else Law.MIXED


def _law_of_rows(whole: Numbers, parts: Sequence[Numbers], tolerance: float) -> Law:
    """Whether values of rows follow from each row alone, in whatever order the parts have the rows."""
    if {part.shape[1:] for part in parts} != {whole.shape[1:]}:
        return Law.MIXED
    whole, joined = _sorted(whole), _sorted(np.concatenate(parts))
    allowed = tolerance * float(np.abs(whole).max(initial=0.0))
    same = joined.shape == whole.shape and bool(np.abs(joined - whole).max(initial=0.0) <= allowed)
    return Law.CONSTANT if same else Law.MIXED


def _sorted(values: Numbers) -> Numbers:
    rows = values.reshape(len(values), -1)
    return np.asarray(rows[np.lexsort(rows.T[::-1])])


def agreed(laws: Sequence[Law]) -> Law:
    """The law that all workers can have found: a worker may have seen less than another, not something else."""
    known = {law for law in laws if law is not Law.UNKNOWN}
    if len(known) > 1:
        known.discard(Law.CONSTANT)  # a few rows may be alike
    return known.pop() if len(known) == 1 else Law.MIXED if known else Law.UNKNOWN
