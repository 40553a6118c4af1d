"""Numbers as users write them, within limits. A function reads one kind and raises :class:`UsageError` for others."""

from __future__ import annotations

import math

from tfos_magic.errors import UsageError


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{text!r} is not a whole number of at least 1.")
    return int(text)


def counting(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdigit():
        raise UsageError(f"{text!r} is not a whole number of at least 0.")
    return int(text)


def above_zero(text: str) -> float:
    """A number greater than 0."""
    value = number(text)
    if value <= 0:
        raise UsageError(f"{text!r} is not greater than 0.")
    return value


def not_negative(text: str) -> float:
    """A number of at least 0."""
    value = number(text)
    if value < 0:
        raise UsageError(f"{text!r} is less than 0.")
    return value


def momentum(text: str) -> float:
    """A number from 0 to below 1."""
    value = number(text)
    if not 0 <= value < 1:
        raise UsageError(f"{text!r} is not a momentum: give a number from 0 to below 1.")
    return value


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number.") from None
    if not math.isfinite(value):
        raise UsageError(f"{text!r} is not a finite number.")
    return value
