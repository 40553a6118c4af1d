"""A training loop of one's own: the weights of fit by every way, and what is refused."""

from __future__ import annotations

import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

OF_FED_ROWS = "%%tfos_train --features pixels --label digit --batch-size 64"


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("13_your_own_training_loop")


def _difference(text: str) -> float:
    found = re.search(r"largest difference to \w+ (\S+)", text)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("cell", ["import tensorflow as tf\n\n\ndef", 'print(f"two', 'print(f"a Data', "here = np"])
def test_every_loop_ends_with_the_weights_it_is_compared_with(executed: Executed, cell: str) -> None:
    assert _difference(executed.text(cell)) < 1e-5


def test_each_worker_sees_its_rows_of_a_batch(executed: Executed) -> None:
    assert "1437 rows, 29 of them in the last batch" in executed.text("import keras\nimport numpy")
    shares = re.findall(r"worker (\d): (\d+) rows of the first batch, (\d+) of the last", executed.text('print(f"two'))
    assert [(worker, first) for worker, first, _ in shares] == [("0", "32"), ("1", "32")]
    assert sorted(last for *_, last in shares) == ["14", "15"]


def test_a_mean_of_unequal_shares_is_not_the_gradient_and_a_weighted_one_is(executed: Executed) -> None:
    told = dict(re.findall(r"^(.*): largest difference (\S+)$", executed.text("model_here ="), re.MULTILINE))
    assert float(told["weighted by rows"]) < 1e-6
    assert float(told["mean of the workers"]) > 100 * float(told["weighted by rows"])


def test_counts_of_both_workers_add_up_to_those_of_one_process(executed: Executed) -> None:
    text = executed.text("here = int(")
    own = re.search(r"the first worker: (\d+) of (\d+) rows", text)
    both = re.search(r"all workers: (\d+) of (\d+); fit's model, in the notebook: (\d+) of (\d+)", text)
    assert own is not None
    assert both is not None
    assert 718 <= int(own[2]) <= 719
    assert int(both[2]) == int(both[4]) == 1437
    assert int(both[1]) == int(both[3])
    assert int(both[1]) > 0.8 * 1437
    assert int(own[1]) <= int(own[2])


def test_a_notice_says_how_the_loop_over_a_dataframe_is_taken(executed: Executed) -> None:
    assert "A custom training loop over a fed DataFrame" in executed.text(f"{OF_FED_ROWS} --no-shuffle -o weights")


def test_weights_of_one_workers_rows_and_batches_of_its_own_are_refused(executed: Executed) -> None:
    assert "tfos.allreduce(gradient)" in executed.text(f"{OF_FED_ROWS} --no-shuffle\nimport")
    assert "df.filter" in executed.text(f"{OF_FED_ROWS}\nfor")


def test_all_workers_have_the_number_that_the_first_one_broadcasts(executed: Executed) -> None:
    told = re.findall(
        r"worker (\d) of 2: process (\d+), worker 0 is process (\d+)", executed.text("%%tfos_run -o seen")
    )
    seen = {int(rank): (int(own), int(first)) for rank, own, first in told}
    assert set(seen) == {0, 1}
    assert seen[0][0] != seen[1][0]
    assert seen[0][0] == seen[0][1] == seen[1][1]


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
