"""A trial: what its cell asks, what it reports, and how it ends. The run is a state that the test moves on."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.cluster.runs.outcome import INTERRUPT_WAITS
from tfos_magic.cluster.runs.request import RETURNED
from tfos_magic.cluster.runs.state import RunState, rewind
from tfos_magic.errors import CaptureError, RunInterrupted, UsageError, WorkerError
from tfos_magic.sweeps.owners import ERROR, STOPPED
from tfos_magic.sweeps.search import Search
from tfos_magic.sweeps.trial import Searching, Trial

NUMBER = {"name": "x", "low": 0, "high": 1}


class Moved:
    """A search, and trials of it whose runs are moved on by hand."""

    def __init__(self, metric: str = "val_accuracy", **options: Any) -> None:
        search = Search(9, metric, seed=2, **options)
        self.searching = Searching(search, search.study())
        self.study = self.searching.study
        self.stopped: list[Trial] = []

    def trial(self) -> Trial:
        made = Trial(self.searching)
        state = RunState("r", "sweep 0", "sync", [], started=time.monotonic())
        made.run = SimpleNamespace(state=state, ask_to_stop=lambda: self.stopped.append(made))  # type: ignore[assignment]
        return made


def epochs(trial: Trial, *values: float | None, metric: str = "val_accuracy") -> Trial:
    for value in values:
        trial.run.state.epochs_done.append(len(trial.run.state.history))
        trial.run.state.history.append({"loss": 1.0} | ({} if value is None else {metric: value}))
        trial.update(trial.run.state)
    return trial


def test_the_study_is_asked_when_the_cell_asks_and_once_for_each_name() -> None:
    moved = Moved()
    trial = moved.trial()
    assert trial.number is None
    assert moved.study.trials == []
    value = trial.answer("suggestion", NUMBER)
    assert (trial.number, trial.params) == (0, {"x": value})
    assert trial.answer("suggestion", NUMBER) == value  # another rank, or an attempt that begins again
    assert trial.run.state.settings["x"] == f"{value:.4g}"


def test_a_name_that_is_asked_for_twice_with_other_bounds_is_refused() -> None:
    trial = Moved().trial()
    trial.answer("suggestion", NUMBER)
    with pytest.raises(UsageError, match="'x' was asked for before in this trial"):
        trial.answer("suggestion", {**NUMBER, "high": 2})


def test_epochs_are_reported_by_how_many_were_trained_and_those_without_the_metric_are_not() -> None:
    moved = Moved()
    trial = epochs(moved.trial(), 0.1, None, 0.3)
    trial.end({}, None)
    (kept,) = moved.study.trials
    assert kept.intermediate_values == {1: 0.1, 3: 0.3}
    assert (kept.value, kept.state.name, trial.verdict) == (0.3, "COMPLETE", "complete")


def test_the_fits_of_a_cell_count_on_and_what_is_trained_again_is_reported_once() -> None:
    moved = Moved()
    trial = epochs(moved.trial(), 0.1, 0.2)
    state = trial.run.state
    state.earlier[0], state.fit = dict(enumerate(state.history)), 1
    state.history.clear()
    state.epochs_done.clear()
    epochs(trial, 0.3, 0.4)
    rewind(state)
    state.history.clear()  # from the beginning of its second fit
    state.epochs_done.clear()
    epochs(trial, 0.9, 0.9, 0.5)
    assert trial.curve == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5}


def test_a_trial_that_is_pruned_is_asked_to_stop_and_reports_nothing_more() -> None:
    moved = Moved(pruner="asha")
    epochs(moved.trial(), 0.9).end({}, None)
    worse = epochs(moved.trial(), 0.1)
    assert worse.pruned
    assert moved.stopped == [worse]
    epochs(worse, 0.95)  # an epoch that was under way
    assert not worse.answer("outputs", {})
    worse.end({}, RunInterrupted({}, ""))
    assert worse.verdict == "pruned"
    assert (moved.study.trials[1].state.name, moved.study.trials[1].intermediate_values) == ("PRUNED", {1: 0.1})


def test_the_names_of_the_best_are_wanted_and_kept_and_those_of_others_are_not() -> None:
    moved = Moved()
    trials = [epochs(moved.trial(), value) for value in (0.5, 0.4, 0.5, 0.7)]
    wanted = []
    for trial in trials:
        wanted.append(trial.answer("outputs", {}))
        trial.end({"model": object()} if wanted[-1] else {}, None)
    assert wanted == [True, False, True, True]  # which of equal ones is the best is known when they are told
    assert moved.searching.best is trials[3]
    assert [bool(trial.values) for trial in trials] == [False, False, False, True]
    assert moved.study.best_trial.number == trials[3].number


def test_the_metric_may_be_a_name_of_the_cell_or_what_a_function_returns() -> None:
    moved = Moved("score")
    trial = moved.trial()
    trial.answer("suggestion", NUMBER)
    assert trial.answer("outputs", {"score": 3.0})
    trial.end({"score": 3.0}, None)
    other = moved.trial()
    assert not other.answer("outputs", {RETURNED: 2.0})
    other.end({}, None)
    assert [each.value for each in moved.study.trials] == [3.0, 2.0]


def test_a_number_of_the_cell_counts_before_that_of_its_epochs_and_both_are_told_where_they_differ() -> None:
    moved = Moved("accuracy")
    same, other, function = (epochs(moved.trial(), 0.5, metric="accuracy") for _ in range(3))
    same.answer("outputs", {"accuracy": 0.5 + 1e-9})
    same.end({}, None)
    assert moved.searching.notices == []
    assert other.answer("outputs", {"accuracy": 0.75})
    other.end({}, None)
    function.answer("outputs", {RETURNED: 42})
    function.end({}, None)
    assert [each.value for each in moved.study.trials] == pytest.approx([0.5, 0.75, 0.5])
    assert [text.partition(":")[0] for text in moved.searching.notices] == [
        "accuracy is set to a number of its own",
        "Trials are compared by accuracy in their last epochs, not by the number that the function returns.",
    ]


def test_a_function_may_return_the_metric_by_its_name() -> None:
    moved = Moved("accuracy")
    trial = epochs(moved.trial(), 0.5, metric="accuracy")
    assert trial.answer("outputs", {RETURNED: {"accuracy": 0.75, "other": "text"}})
    trial.end({}, None)
    assert moved.study.trials[0].value == 0.75
    assert moved.searching.notices[0].startswith("accuracy is set to a number of its own")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"score": None}, "Its score is None: set it to one number."),
        ({"score": [1, 2]}, "Its score is of type list: set it to one number."),
        ({RETURNED: (1, 2)}, "what its function returned is of type tuple: return one number, or a dict with 'score'."),
        ({RETURNED: {"score": "1"}}, "Its score is of type str: set it to one number."),
        ({}, "It reported no 'score': its metrics are none, and no name called so in the cell"),
    ],
)
def test_what_is_there_instead_of_the_metric_is_told(values: dict[str, Any], told: str) -> None:
    trial = Moved("score").trial()
    trial.answer("suggestion", NUMBER)
    trial.end(values, None)
    assert told in trial.error


def test_the_end_that_a_sweep_makes_of_a_trial_is_told_as_no_interrupt() -> None:
    moved = Moved("score")
    trial = moved.trial()
    trial.run.state.notices.append(INTERRUPT_WAITS)
    trial.update(trial.run.state)
    assert moved.searching.notices == [INTERRUPT_WAITS]
    other, moved.searching.over = moved.trial(), True
    moved.searching.notices.clear()
    other.run.state.notices.append(INTERRUPT_WAITS)
    other.update(other.run.state)
    assert moved.searching.notices == []


def test_a_pruner_that_has_nothing_to_go_by_is_told() -> None:
    moved = Moved("score", pruner="asha")
    trial = moved.trial()
    trial.answer("suggestion", NUMBER)
    trial.end({"score": 1.0}, None)
    assert "the pruner ends no trial early" in moved.searching.notices[0]


def test_a_trial_that_other_kernels_have_is_no_stopped_one() -> None:
    moved = Moved()
    trial = moved.trial()
    trial.spare()
    trial.end({}, RunInterrupted({}, ""))
    assert (trial.verdict, trial.number, moved.stopped) == ("spared", None, [trial])


@pytest.mark.parametrize(
    ("values", "message"),
    [((math.nan,), "is not a number"), ((None,), "reported no 'val_accuracy': its metrics are loss")],
)
def test_a_trial_without_a_usable_metric_fails_and_says_so(values: tuple[Any, ...], message: str) -> None:
    moved = Moved()
    trial = epochs(moved.trial(), *values)
    trial.run.state.metrics["loss"] = 1.0
    trial.end({}, None)
    assert message in trial.error
    assert moved.study.trials[0].state.name == "FAIL"


def test_an_error_fails_the_trial_with_its_traceback() -> None:
    moved = Moved()
    trial = moved.trial()
    trial.end({}, WorkerError("no", rank=0, kind="ValueError", remote_traceback="in line 3"))
    assert (trial.verdict, trial.number) == ("failed", 0)
    assert "in line 3" in trial.error
    assert moved.study.trials[0].user_attrs[ERROR] == "ValueError on worker 0: no"


def test_a_trial_that_is_stopped_is_no_failure_and_one_that_never_began_is_not_in_the_study() -> None:
    moved = Moved()
    begun, waiting = epochs(moved.trial(), 0.5), moved.trial()
    for trial in (begun, waiting):
        trial.end({}, RunInterrupted({}, ""))
    assert (begun.verdict, waiting.verdict, waiting.number) == ("stopped", "stopped", None)
    assert [trial.user_attrs[ERROR] for trial in moved.study.trials] == [STOPPED]


def test_a_model_that_could_not_come_costs_no_trial() -> None:
    moved = Moved()
    trial = epochs(moved.trial(), 0.5)
    trial.end({}, CaptureError("model: it cannot be sent", {"history": 1}))
    assert (trial.verdict, trial.values) == ("complete", {"history": 1})
    assert moved.searching.notices == ["model: it cannot be sent"]


def test_of_equal_values_the_best_trial_is_the_studys_whoever_ended_first() -> None:
    moved = Moved()
    first, second = epochs(moved.trial(), 0.5), epochs(moved.trial(), 0.5)
    assert (first.trial.number, second.trial.number) == (0, 1)
    for trial in (second, first):
        assert trial.answer("outputs", {})
        trial.end({"model": object()}, None)
    assert moved.searching.best is [first, second][moved.study.best_trial.number]
    assert bool(moved.searching.best.values)
    assert sum(bool(trial.values) for trial in (first, second)) == 1
