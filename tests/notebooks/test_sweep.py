"""A sweep: the same cell by itself and searched over, pruned, its best model, and a study that goes on."""

from __future__ import annotations

import ast
import re

import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("10_sweep")


def test_by_itself_the_cell_trains_with_the_middle_of_each_range(executed: Executed) -> None:
    assert executed.text('print(f"rate').startswith("rate 0.0032, units 64: 0.9")


def test_every_trial_is_told_and_the_best_is_marked(executed: Executed) -> None:
    told = executed.text("%%tfos_sweep --trials 16")
    assert len(re.findall(r"^trial \d+ · (complete|pruned) · val_accuracy 0\.\d+ · rate ", told, re.M)) == 16
    assert "Searching for the largest val_accuracy." in told
    assert "Searched on 2 workers" in told


def test_pruning_leaves_out_more_than_a_third_of_the_epochs(executed: Executed) -> None:
    told = executed.text("trials = study")
    states, trained = ast.literal_eval(told.partition("}")[0] + "}"), re.search(r"(\d+) of 144 epochs", told)
    assert sum(states.values()) == 16
    assert trained is not None
    assert int(trained[1]) < 96


def test_the_best_model_reads_digits_that_no_trial_has_seen(executed: Executed) -> None:
    accuracy = re.search(r"Test accuracy: (\d\.\d+)", executed.text("import numpy"))
    assert accuracy is not None
    assert float(accuracy[1]) > 0.94


def test_the_stored_study_goes_on_to_twelve_trials(executed: Executed) -> None:
    assert "4 of 4 trials" in executed.text("%%tfos_sweep --trials 4")
    assert "8 of 8 trials" in executed.text("%%tfos_sweep --trials 12")
    assert executed.text('print(f"{len(study.trials)} trials').startswith("12 trials, the best 0.")


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
