"""Whole programs, in the styles that Keras programs have, give what one process gives, or are refused.

All run in float64 on two ranks, some in float32 on three as well. ``make test`` takes the smallest of each verdict,
``make soak`` the others. ``python -m tests.corpus --all`` runs all in every way and prints
differences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.corpus.comparison import TOLERANCES, difference, judge
from tests.corpus.program import Program, programs
from tests.soak import every

PROGRAMS = programs()


def _verdict(program: Program) -> str:
    return program.expect.split(":")[0]


def _with_marks() -> list[Any]:
    """The programs, all but the smallest of each verdict marked as ``make soak``'s."""
    by_size = sorted(PROGRAMS, key=lambda program: program.path.stat().st_size, reverse=True)
    smallest = {_verdict(program): program for program in by_size}.values()
    return [
        pytest.param(program, id=program.name, marks=[] if program in smallest else [pytest.mark.soak])
        for program in PROGRAMS
    ]


@pytest.mark.parametrize("program", _with_marks())
def test_a_program_gives_what_it_says_that_it_must(groups, program: Program) -> None:
    verdict = judge(program, groups, 2, "float64")
    assert not verdict.wrong


@pytest.mark.soak
@pytest.mark.parametrize("program", every(8, PROGRAMS[::25]), ids=lambda program: program.name)
def test_a_program_gives_it_on_three_workers_in_float32(groups, program: Program) -> None:
    verdict = judge(program, groups, 3, "float32")
    assert not verdict.wrong


def test_there_are_programs_of_every_kind() -> None:
    assert len(PROGRAMS) >= 40
    assert {_verdict(program) for program in PROGRAMS} == {"equal", "expectation", "refused"}


@pytest.mark.parametrize(
    "mine",
    [
        {"weights": np.array([1.0, 2.0 + 1e-8])},
        {"weights": np.array([1.0, np.nan])},
        {"weights": np.array([[1.0, 2.0]])},
        {"others": np.array([1.0, 2.0])},
    ],
    ids=["a number", "not a number", "a shape", "a name"],
)
def test_a_difference_is_found(mine: dict[str, np.ndarray]) -> None:
    plain = {"weights": np.array([1.0, 2.0])}
    assert difference(mine, plain) > TOLERANCES["float64"]
    assert difference(dict(plain), plain) == 0.0
