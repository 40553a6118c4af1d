"""Trainer groups that the tests of this folder share: forming one takes seconds, running a cell in it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.training.harness import Group, Outcome


class Groups:
    """Groups by size, started when first asked for. Size 0 is a plain process."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        self._plain: dict[tuple[str, ...], Outcome] = {}

    def __getitem__(self, size: int) -> Group:
        if size in self._groups and self._groups[size].broken:
            self._groups.pop(size).close()
        if size not in self._groups:
            self._groups[size] = Group(size)
        return self._groups[size]

    def plain(self, cell: str, *names: str) -> Outcome:
        """Run ``cell``, once however often it is asked for, in a process that knows nothing of distribution."""
        key = (cell, *names)
        if key not in self._plain:
            self._plain[key] = succeeded(self[0].run(cell, *names))[0]
        return self._plain[key]

    def close(self) -> None:
        for group in self._groups.values():
            group.close()


@pytest.fixture(scope="package")
def groups() -> Iterator[Groups]:
    made = Groups()
    yield made
    made.close()


@pytest.fixture
def same_as_plain(groups: Groups) -> Callable[..., list[Outcome]]:
    """Run a cell plainly and on ``size`` ranks, and compare its ``weights`` and, where it has one, its ``history``."""

    def check(cell: str, size: int, *names: str, tolerance: float = 1e-5) -> list[Outcome]:
        expected = groups.plain(cell, "weights", "history", *names)
        outcomes = succeeded(groups[size].run(cell, "weights", "history", *names))
        assert_same_weights(outcomes, expected.values["weights"], tolerance)
        for outcome in outcomes:
            assert outcome.values["history"] == outcomes[0].values["history"]
        assert_same_history(outcomes[0].values["history"], expected.values["history"])
        return [expected, *outcomes]

    return check


def succeeded(outcomes: list[Outcome]) -> list[Outcome]:
    for rank, outcome in enumerate(outcomes):
        assert not outcome.kind, f"rank {rank}: {outcome.kind}: {outcome.error}"
    return outcomes


def assert_same_weights(outcomes: list[Outcome], expected: list[np.ndarray], tolerance: float) -> None:
    for rank, outcome in enumerate(outcomes):
        for mine, first, plain in zip(outcome.values["weights"], outcomes[0].values["weights"], expected, strict=True):
            assert np.isfinite(plain).all(), "the plain run itself is not finite, so nothing is compared"
            assert np.array_equal(mine, first), f"rank {rank} differs from rank 0"
            assert np.abs(mine - plain).max() <= tolerance


def assert_same_history(history: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert history.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, atol=2e-5, err_msg=name)


def told(group: Any, cell: str, *names: str) -> tuple[list[Any], list[str]]:
    """Outcomes by rank, and the notices of a run."""
    notices: list[str] = []

    def hear(rank: int, message: Any) -> None:
        notices.extend([message.text] if type(message).__name__ == "Notice" else [])

    return succeeded(group.run(cell, *names, on_message=hear)), notices
