"""Laws of numbers over rows, found from all rows and two parts of them."""

from __future__ import annotations

import numpy as np
import pytest

from tfos_magic.training.firststep.laws import Law, StepValues, agreed, laws_of

ROWS = np.random.default_rng(1).normal(size=(9, 3))
LAWS = {
    "constant": (lambda rows: np.ones(2), Law.CONSTANT),
    "mean": (lambda rows: rows.mean(0), Law.MEAN),
    "sum": (lambda rows: rows.sum(0), Law.SUM),
    "zero": (lambda rows: np.zeros(2), Law.UNKNOWN),
    "not finite": (lambda rows: np.array([np.nan]), Law.UNKNOWN),
    "variance": (lambda rows: rows.var(0), Law.MIXED),
    "sum and constant": (lambda rows: rows.sum(0) + 1, Law.MIXED),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_law_shows_in_all_rows_and_two_parts(name: str) -> None:
    compute, law = LAWS[name]
    whole, *parts = (StepValues(len(rows), {"it": compute(rows)}) for rows in (ROWS, ROWS[:4], ROWS[4:]))
    assert laws_of(whole, parts, 1e-6, {}) == {"it": law}


def test_differences_below_the_floor_are_rounding() -> None:
    whole, *parts = (StepValues(rows, {"it": np.array([value])}) for rows, value in ((2, 1e-9), (1, 3e-9), (1, 8e-9)))
    assert laws_of(whole, parts, 1e-6, {}) == {"it": Law.MIXED}
    assert laws_of(whole, parts, 1e-6, {"it": 1.0}) == {"it": Law.UNKNOWN}


@pytest.mark.parametrize(
    ("found", "common"),
    [
        ([Law.MEAN, Law.MEAN], Law.MEAN),
        ([Law.MEAN, Law.UNKNOWN], Law.MEAN),
        ([Law.CONSTANT, Law.SUM], Law.SUM),
        ([Law.MEAN, Law.SUM], Law.MIXED),
        ([Law.MEAN, Law.MIXED], Law.MIXED),
        ([Law.UNKNOWN, Law.UNKNOWN], Law.UNKNOWN),
    ],
)
def test_workers_agree_on_the_law_that_all_can_have_seen(found: list[Law], common: Law) -> None:
    assert agreed(found) is common


def test_what_fits_a_mean_and_a_sum_by_chance_is_unknown() -> None:
    whole = StepValues(5, {"it": np.array([0.5])})
    parts = [StepValues(2, {"it": np.array([-1.0])}), StepValues(3, {"it": np.array([1.5])})]
    assert laws_of(whole, parts, 1e-6, {}) == {"it": Law.UNKNOWN}
