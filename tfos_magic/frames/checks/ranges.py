"""Casts that would make other numbers of a column's: too large, too small, negative, no whole ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfos_magic.errors import DataError


def refuse_unfit(values: Any, dtype: str, column: str) -> None:
    """Raise :class:`DataError`, naming the column and a value, where a cast to ``dtype`` does not hold the values.

    Floating-point numbers may be rounded, and keep NaN and infinities; of what becomes an integer nothing may be lost.
    """
    given = values.dtype
    if given.kind not in "iufb" or not values.size or given.name == dtype or dtype in ("bytes", "string"):
        return
    low, high, whole = _limits(dtype)
    if _holds(given, low, high) and not (whole and given.kind == "f"):
        return
    least, most = values.min().item(), values.max().item()
    if low <= least and most <= high and not (whole and given.kind == "f" and (np.trunc(values) != values).any()):
        return
    bad = (values < low) | (values > high)
    if not whole:
        bad &= np.isfinite(values)
    elif given.kind == "f":
        bad = ~((values >= float(low)) & (values < float(high + 1)) & (np.trunc(values) == values))
    if bad.any():
        raise DataError(
            f"column {column!r} has {values[bad][0].item()!r}, which is to become {dtype}, of "
            f"{'whole numbers' if whole else 'numbers'} from {low} to {high}: cast or filter the column first"
        )


def _limits(dtype: str) -> tuple[Any, Any, bool]:
    if dtype == "bool":
        return 0, 1, True
    if "int" in dtype:
        limits = np.iinfo(dtype)
        return limits.min, limits.max, True
    # The exponents of bfloat16, which NumPy does not know, are those of float32.
    greatest = float(np.finfo("float32" if dtype == "bfloat16" else dtype).max)
    return -greatest, greatest, False


def _holds(given: Any, low: Any, high: Any) -> bool:
    """True when no value of a dtype is out of the limits."""
    if given.kind == "b":
        return True
    limits: Any = np.finfo(given) if given.kind == "f" else np.iinfo(given)
    least, greatest = (np.asarray(limit).item() for limit in (limits.min, limits.max))
    return bool(low <= least and greatest <= high)
