"""When a cluster pays: the same weights on 1, 2 and 4 workers, shared cores, and an estimate."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

STEPS = 8  # of an epoch: 1,797 rows, 256 in a batch


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("12_when_a_cluster_pays")


@pytest.fixture(scope="module")
def table(executed: Executed) -> dict[int, list[float]]:
    """By workers: seconds of the fastest epoch, computing, exchange, waiting for others, MB sent per epoch."""
    rows = re.findall(r"^([124])  +(.*)$", executed.text("import numpy"), re.MULTILINE)
    return {int(workers): [float(value) for value in values.split()] for workers, values in rows}


def _estimate(text: str) -> list[list[float]]:
    """For 2, 4 and 8 workers, how many times faster at 10 Gb/s, 1 Gb/s and 100 Mb/s."""
    return [[float(value) for value in row.split()] for row in re.findall(r"^[248]  +(.*)$", text, re.MULTILINE)]


def _computing(text: str) -> float:
    found = re.search(r"a step: (\d+\.\d) ms of computing", text)
    assert found is not None
    return float(found[1])


def test_every_number_of_workers_trains_the_same_weights(executed: Executed) -> None:
    for workers in (1, 2, 4):
        assert len(re.findall(r"^epoch \d of 6 ", executed.text(f"%%tfos_train -n {workers} -o weights"), re.M)) == 6
    told = re.findall(r"^(\d) workers: .* (\S+)$", executed.text("import numpy"), re.MULTILINE)
    assert [workers for workers, _ in told] == ["1", "2", "4"]
    assert float(told[0][1]) == 0
    assert all(0 < float(largest) <= 1e-5 for _, largest in told[1:])


def test_workers_that_share_cores_do_not_divide_the_time_by_their_number(table: dict[int, list[float]]) -> None:
    one, two, four = (table[workers][0] for workers in (1, 2, 4))
    assert two > one / 2
    assert four > one / 3


def test_the_exchange_and_the_waiting_begin_with_the_second_worker(table: dict[int, list[float]]) -> None:
    assert table[1][2:] == [0, 0, 0]
    for workers in (2, 4):
        _, computing, exchange, waiting, _ = table[workers]
        assert computing > 0
        assert exchange > 0
        assert waiting > 0


def test_the_bytes_are_those_of_the_gradients(executed: Executed, table: dict[int, list[float]]) -> None:
    told = re.search(r"(\d\.\d+) MB of gradients in each step", executed.text("size = sum"))
    assert told is not None
    assert table[2][4] == pytest.approx(2 * STEPS * float(told[1]), rel=0.1)
    assert re.search(r"all 2 .*gradients ", executed.text("size = sum"))


def test_the_estimate_is_that_of_the_text(executed: Executed) -> None:
    cell = executed.text("from math import ceil")
    step, size = _computing(cell), float(executed.text("size = sum").split(" MB")[0])
    for workers, row in zip((2, 4, 8), _estimate(cell), strict=True):
        for gigabits, faster in zip((10, 1, 0.1), row, strict=True):
            exchange = 2 * (workers - 1) / workers * size * 8 / gigabits  # ms
            assert faster == pytest.approx(step / (step / workers + exchange), rel=0.05, abs=0.011)


def test_a_smaller_batch_pays_less(executed: Executed) -> None:
    large, small = executed.text("from math import ceil"), executed.text("small = computing")
    assert _computing(small) < _computing(large) / 3
    assert _estimate(small)[0][0] < 2
    for with_large, with_small in zip(_estimate(large), _estimate(small), strict=True):
        assert all(less < more for less, more in zip(with_small, with_large, strict=True))


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
