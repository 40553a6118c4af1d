"""What ``make test`` takes of tests that have many cases of a kind; ``make soak`` takes the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """``cases`` for ``parametrize``: the first and each ``step``-th from there for ``make test``."""
    return [case if number % step == 0 else _later(case) for number, case in enumerate(cases)]


def in_turn(cases: Iterable[Any], others: Sequence[Any], step: int = 1) -> list[Any]:
    """Pairs of ``cases`` and ``others`` for ``parametrize``: each ``step``-th case with one of the others for
    ``make test``."""
    return [
        (case, other) if (number % step, number // step % len(others)) == (0, turn) else _later((case, other))
        for number, case in enumerate(cases)
        for turn, other in enumerate(others)
    ]


def _later(case: Any) -> Any:
    marks = pytest.mark.soak
    return pytest.param(*case, marks=marks) if isinstance(case, tuple) else pytest.param(case, marks=marks)
