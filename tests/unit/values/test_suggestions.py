"""Numbers and choices by name, with plain defaults, and what else was chosen for them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tfos_magic as tfos
from tfos_magic.errors import UsageError
from tfos_magic.values import suggestions

CELL = """
rate = tfos.suggest_float("rate", 1e-4, 1e-2, log=True)
units = tfos.suggest_int("units", 16, 64, step=16, default=32)
kind = tfos_magic.suggest_categorical("kind", ["relu", "tanh"])
best = tfos.suggest_float("best", 0, limit)
"""


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: tfos.suggest_float("a", 1, 3), 2.0),
        (lambda: tfos.suggest_float("a", 1e-4, 1e-2, log=True), pytest.approx(1e-3)),
        (lambda: tfos.suggest_float("a", 0, 1, step=0.4), pytest.approx(0.4)),
        (lambda: tfos.suggest_int("a", 16, 257, step=16), 128),
        (lambda: tfos.suggest_int("a", 1, 256, log=True), 16),
        (lambda: tfos.suggest_int("a", 1, 9, default=3), 3),
        (lambda: tfos.suggest_int("a", np.int64(1), np.int32(9), default=np.int64(4)), 4),
        (lambda: tfos.suggest_float("a", 0, np.float32(1)), 0.5),
        (lambda: tfos.suggest_categorical("a", np.array([2, 3])), 2),
        (lambda: tfos.suggest_categorical("a", ["x", "y"]), "x"),
        (lambda: tfos.suggest_categorical("a", ["x", "y"], default="y"), "y"),
    ],
)
def test_where_nothing_was_chosen_it_is_the_default_or_the_middle(made: Any, expected: Any) -> None:
    value = made()
    assert value == expected
    assert type(value) in (float, int, str)


@pytest.mark.parametrize(
    ("name", "low", "high"), [(3, 0, 1), ("a", 1, 1), ("a", 0, float("inf")), ("a", float("nan"), 1), ("a", "0", 1)]
)
def test_names_are_texts_and_bounds_are_finite_numbers(name: Any, low: Any, high: Any) -> None:
    with pytest.raises(UsageError, match=r"has a text as its name|give low < high, or choices"):
        tfos.suggest_float(name, low, high)


def test_what_was_chosen_takes_its_place_here_and_in_all_threads_of_a_run() -> None:
    with suggestions.choosing({"rate": 0.5}):
        assert tfos.suggest_float("rate", 0, 1) == 0.5
        assert tfos.suggest_float("other", 0, 1, default=0.1) == 0.1
        with pytest.raises(UsageError, match=r"'rate' is a number from 2 to 3, and not 0.5"):
            tfos.suggest_float("rate", 2, 3)
    seen: list[float] = []
    suggestions.choose({"rate": 0.25})
    try:
        thread = threading.Thread(target=lambda: seen.append(tfos.suggest_float("rate", 0, 1)))
        thread.start()
        thread.join()
    finally:
        suggestions.choose({})
    assert seen == [0.25]
    assert tfos.suggest_float("rate", 0, 1, default=1.0) == 1.0


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: tfos.suggest_float("a", 3, 1), "give low < high"),
        (lambda: tfos.suggest_float("a", 0, 1, log=True), "bounds above zero"),
        (lambda: tfos.suggest_int("a", 1, 3, default=7), "a whole number from 1 to 3, and not 7"),
        (lambda: tfos.suggest_categorical("a", []), "no choices: give one"),
        (lambda: tfos.suggest_int("a", 1.5, 3), "give whole bounds"),
        (lambda: tfos.suggest_int("a", 1, 11, step=2, default=4), "1 and steps of 2 from there, and not 4"),
        (lambda: tfos.suggest_float("a", 0, 1, step=0.1, default=0.25), "0 and steps of 0.1 from there, and not 0.25"),
        (lambda: tfos.suggest_float("a", 0, 1, step=0), "give one above zero"),
        (lambda: tfos.suggest_categorical("a", ["x"], default="z"), "one of"),
    ],
)
def test_bounds_that_are_none_are_refused(made: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()


def test_a_text_tells_what_it_asks_for_where_that_is_written_out() -> None:
    found = suggestions.suggestions_in(CELL)
    assert list(found) == ["rate", "units", "kind"]
    assert (found["rate"].low, found["rate"].high, found["rate"].log) == (1e-4, 1e-2, True)
    assert (found["units"].usual, found["units"].whole) == (32, True)
    assert found["kind"].choices == ["relu", "tanh"]
