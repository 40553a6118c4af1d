"""The number by which trials are compared, and what to say where there is none."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from tfos_magic.cluster.runs.request import RETURNED
from tfos_magic.errors import did_you_mean

ROUNDING = 1e-6


def number_of(value: Any) -> float | None:
    """A value as a number; None where it is none."""
    try:
        return None if value is None or isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return None


def differ(number: float, reported: float | None) -> bool:
    """Whether an epoch reported another number."""
    return reported is not None and not math.isclose(number, reported, rel_tol=ROUNDING)


def why_none(
    metric: str, values: Mapping[str, Any], known: Collection[str], returned: Collection[str], text: str
) -> str:
    """Why a trial has no metric: what it has instead.

    ``values`` are those of its cell, or what its function ``text`` gave; ``known`` are the metrics of its epochs, and
    ``returned`` the names in what the function gave.
    """
    result = values.get(RETURNED)
    named = result if isinstance(result, Mapping) else values
    if metric in named:
        return f"Its {metric} is {_kind(named[metric])}: set it to one number."
    near = did_you_mean(metric, {*known, *returned, *re.findall(r"[^\W\d]\w+", text)} - {metric}, "")
    if result is not None and not isinstance(result, Mapping):
        return (
            f"It reported no {metric!r}, and what its function returned is {_kind(result)}: return one number, or a "
            f"dict with {metric!r}.{' ' * bool(near)}{near}"
        )
    return (
        f"It reported no {metric!r}: its metrics are {', '.join(known) or 'none'}, and no name called so in the cell, "
        f"nor what a function returned, is one number.{' ' * bool(near)}{near}"
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
