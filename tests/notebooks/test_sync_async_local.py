"""Three strategies learn the same digits, at the price that the tutorial reckons."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

STRATEGIES = ["sync", "local", "async"]
GRADIENTS = 2 * 45 * 9898 * 4 / 1e3  # kB of an epoch: workers, steps, weights, bytes


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("03_sync_async_local")


@pytest.fixture(scope="module")
def table(executed: Executed) -> dict[str, list[float]]:
    """Of each strategy: kB sent per epoch, seconds, seconds communicating, accuracy."""
    rows = re.findall(r"^(sync|local|async)\s+(.*)$", executed.text("import pandas"), re.MULTILINE)
    return {name: [float(value) for value in values.split()] for name, values in rows}


def test_one_cluster_of_two_workers_and_a_server_runs_all_three(executed: Executed) -> None:
    assert re.findall(r"^  (worker|ps) (\d)", executed.text("%load_ext"), re.MULTILINE) == [
        ("worker", "0"),
        ("worker", "1"),
        ("ps", "2"),
    ]
    for name in STRATEGIES:
        assert "Trained on 2 workers" in executed.text(f"%%tfos_train --strategy {name}")


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_learns_the_digits(executed: Executed, table: dict[str, list[float]], name: str) -> None:
    told = re.findall(
        r"^epoch (\d+) of 8 .* val_accuracy (\S+)", executed.text(f"%%tfos_train --strategy {name}"), re.M
    )
    assert [int(epoch) for epoch, _ in told] == list(range(1, 9))
    assert table[name][3] == pytest.approx(float(told[-1][1]), abs=1e-3)
    assert table[name][3] > 0.92


def test_the_bytes_are_those_that_the_text_reckons(table: dict[str, list[float]]) -> None:
    assert table["sync"][0] == pytest.approx(GRADIENTS, rel=0.03)
    assert table["async"][0] == pytest.approx(GRADIENTS, rel=0.03)
    assert GRADIENTS / 8 <= table["local"][0] < GRADIENTS / 6


def test_communication_is_a_part_of_the_seconds(table: dict[str, list[float]]) -> None:
    for _, seconds, communicating, _ in table.values():
        assert 0 < communicating < seconds


def test_the_curves_are_drawn_and_nothing_runs_after_the_stop(executed: Executed) -> None:
    assert len(executed.pictures("import matplotlib")) == 1
    assert not [line for line in executed.running_after("%tfos stop") if line.startswith("tfos-trainer")]
