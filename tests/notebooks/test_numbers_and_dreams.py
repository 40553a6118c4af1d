"""Numbers and dreams: three ways to a kernel density are timed and agree, and dreams make a layer respond more."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

ROWS, NUMPY, BLOCKS = "Python UDF, row by row", "pandas UDF, NumPy", "map_blocks, TensorFlow"


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("18_numbers_and_dreams")


@pytest.fixture(scope="module")
def calls(executed: Executed) -> dict[str, tuple[float, float, float]]:
    """By way: seconds of the first and of the second call, and the sum of the scores."""
    pattern = r"^(\S.*?) +first +(\S+) s, then +(\S+) s, sum of scores (\S+)$"
    rows = re.findall(pattern, executed.text("from time import"), re.MULTILINE)
    return {way: (float(first), float(second), float(total)) for way, first, second, total in rows}


def test_all_ways_give_the_same_scores(executed: Executed, calls: dict[str, tuple[float, float, float]]) -> None:
    assert list(calls) == [ROWS, NUMPY, BLOCKS]
    totals = [total for *_, total in calls.values()]
    assert totals == pytest.approx([totals[0]] * 3, rel=1e-9)
    told = re.search(r"relative difference of the sums: (\S+)", executed.text("many = "))
    assert told is not None
    assert float(told[1]) < 1e-9


def test_the_first_call_of_map_blocks_loads_tensorflow(calls: dict[str, tuple[float, float, float]]) -> None:
    first, second, _ = calls[BLOCKS]
    assert first == max(each[0] for each in calls.values())
    assert first > second + 1


def test_a_position_row_by_row_takes_several_times_as_long(executed: Executed) -> None:
    told = executed.text("import matplotlib")
    times = dict(re.findall(r"^(\S.*): a position takes 1/(\d+) of", told, re.MULTILINE))
    assert set(times) == {NUMPY, BLOCKS}
    assert min(map(int, times.values())) > 4
    assert re.search(r"map_blocks takes \d\.\d\d times as long as NumPy", told)
    assert len(executed.pictures("import matplotlib")) == 1


def test_the_network_learns_its_textures(executed: Executed) -> None:
    told = re.search(r"accuracy in training: (\S+)", executed.text("import keras"))
    assert told is not None
    assert float(told[1]) > 0.9


def test_every_image_makes_the_layer_respond_more(executed: Executed) -> None:
    pattern = r"^(\w+): mean activation of the layer from (\S+) to (\S+)"
    told = re.findall(pattern, executed.text("def shown"), re.MULTILINE)
    assert [name for name, *_ in told] == ["temple", "flower", "noise"]
    assert all(float(after) > 1.5 * float(before) for _, before, after in told)
    assert len(executed.pictures("def shown")) == 1


def test_every_wish_is_fulfilled(executed: Executed) -> None:
    shown = executed.text("%%tfos_map wishes")
    rows = re.findall(r"^\d .*?(-?\d+\.\d+) +(-?\d+\.\d+) *$", shown, re.MULTILINE)
    assert len(rows) == 8
    assert all(float(after) > float(before) + 5 for before, after in rows)
    assert len(executed.pictures("dreams_of")) == 1


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
