"""What is searched for, and the study that searches."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest

from tfos_magic import this_host
from tfos_magic.errors import UsageError
from tfos_magic.sweeps import owners
from tfos_magic.sweeps import search as searches
from tfos_magic.sweeps.owners import AGAIN, ERROR, OWNER, STOPPED, ended_trials, take_up, taken_trials
from tfos_magic.sweeps.search import Search, direction_of, suggest
from tfos_magic.sweeps.trial import Searching
from tfos_magic.values.suggestions import Suggestion

CELL = """
units = tfos.suggest_int("units", 16, 48, step=16)
layers = tfos.suggest_int("layers", 1, 2)
kind = tfos.suggest_categorical("kind", ["relu", "tanh"])
"""


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        *dict.fromkeys(
            ("accuracy", "val_auc", "f1_score", "val_binary_io_u", "r2_score", "precision"), "maximize"
        ).items(),
        *dict.fromkeys(
            ("loss", "val_mse", "rmse", "mean_absolute_error", "kl_divergence", "hinge"), "minimize"
        ).items(),
        ("val_sparse_categorical_accuracy", "maximize"),
        ("val_sparse_categorical_crossentropy", "minimize"),
    ],
)
def test_the_name_of_a_metric_tells_what_is_better_of_it(metric: str, direction: str) -> None:
    assert direction_of(metric) == direction
    assert Search(1, metric).direction == direction
    assert Search(1, metric).study().direction.name.lower() == direction


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": ""}, "Say what to optimise"),
        ({"metric": "goodness"}, "its name does not tell: add --direction"),
        ({"metric": "neg_log_loss"}, "its name does not tell: add --direction"),
        *(
            ({"metric": name}, "its name does not tell: add --direction")
            for name in ("lossless_ratio", "accuracy_drop", "val_loss_gain", "no_loss", "mae_improvement")
        ),
        ({"direction": "up"}, "give maximize or minimize"),
        ({"sampler": "tep"}, "There is no sampler 'tep'. Did you mean 'tpe'?"),
        ({"pruner": 3}, "There is no pruner 3"),
        ({"resume": True}, "add --storage"),
        ({"trials": 0}, "give a number, such as --trials 40"),
        ({"sampler": "grid"}, "A grid is made of calls like"),
        ({"sampler": "grid", "text": "tfos.suggest_float('x', 0, 1)"}, "give it a step, or choices"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        Search(**{"trials": 3, "metric": "loss", **options}).study()


def test_a_grid_has_all_points_of_what_the_text_suggests() -> None:
    search = Search(0, "loss", sampler="grid", text=CELL, seed=1)
    assert search.grid == {"units": [16, 32, 48], "layers": [1, 2], "kind": ["relu", "tanh"]}
    assert search.size == 12
    assert Search(100, "loss", sampler="grid", text=CELL).size == 12
    searching = Searching(search, search.study())
    for left in reversed(range(12)):
        trial = searching.ask()
        trial.suggest_int("units", 16, 48, step=16), trial.suggest_int("layers", 1, 2)
        trial.suggest_categorical("kind", ["relu", "tanh"])
        searching.tell(trial, 0.0, optuna.trial.TrialState.COMPLETE)
        assert searching.exhausted == (left == 0)
    assert len({tuple(sorted(trial.params.items())) for trial in searching.study.trials}) == 12


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_values_are_those_of_optunas_own_study_with_the_same_seed(sampler: str) -> None:
    kinds = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    kinds["cmaes"] = optuna.samplers.CmaEsSampler
    own = optuna.create_study(sampler=kinds[sampler](seed=4))
    own.optimize(lambda trial: trial.suggest_float("x", 1e-3, 1, log=True) + trial.suggest_int("n", 1, 9), n_trials=14)
    study = Search(14, "loss", sampler=sampler, seed=4).study()
    for _ in range(14):
        trial = study.ask()
        x = suggest(trial, Suggestion("x", 1e-3, 1, log=True))
        study.tell(trial, x + suggest(trial, Suggestion("n", 1, 9, whole=True)))
    assert [trial.params for trial in study.trials] == [trial.params for trial in own.trials]


def test_samplers_and_pruners_of_ones_own_are_taken() -> None:
    sampler, pruner = optuna.samplers.RandomSampler(seed=1), optuna.pruners.PercentilePruner(50.0)
    study = Search(1, "loss", sampler=sampler, pruner=pruner).study()
    assert (study.sampler, study.pruner) == (sampler, pruner)


def test_a_study_that_is_there_goes_on_only_where_that_is_asked_for(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    first = Search(2, "loss", storage=storage).study()
    first.tell(first.ask(), 1.0)
    with pytest.raises(UsageError, match="--resume goes on with it"):
        Search(2, "loss", storage=storage).study()
    with pytest.raises(UsageError, match="is to minimize, not to maximize: --direction minimize goes on"):
        Search(2, "accuracy", storage=storage, resume=True).study()
    with pytest.raises(UsageError, match="is of loss, not of mse: --metric loss goes on with it"):
        Search(2, "mse", storage=storage, resume=True).study()
    study = Search(2, "loss", storage=storage, resume=True).study()
    assert ended_trials(study) == 1
    study.ask()  # of a program that is not ours
    assert taken_trials(study) == 2


@pytest.mark.parametrize("storage", ["nonsense://me:secret@host/x", "sqlite:////no/such/folder/x.db"])
def test_a_storage_that_cannot_be_opened_is_named_without_its_password(storage: str) -> None:
    with pytest.raises(UsageError, match=r"A study cannot be kept at .*Give a URL of a database") as caught:
        Search(1, "loss", storage=storage).study()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_study_goes_on_to_other_values_than_it_has_had(tmp_path: Path, sampler: str) -> None:
    options: dict[str, Any] = {"storage": f"sqlite:///{tmp_path}/study.db", "sampler": sampler, "seed": 3}

    def tried(study: optuna.Study) -> list[float]:
        for _ in range(3):
            trial = study.ask()
            study.tell(trial, trial.suggest_float("x", 0, 1))
        return [trial.params["x"] for trial in study.trials]

    first = tried(Search(3, "loss", **options).study())
    both = tried(Search(6, "loss", resume=True, **options).study())
    assert both[:3] == first
    assert len(set(both)) == 6


def test_choices_that_change_from_trial_to_trial_are_refused_by_name() -> None:
    study = Search(2, "loss").study()
    suggest(study.ask(), Suggestion("kind", choices=["a", "b"]))
    with pytest.raises(UsageError, match="'kind' must have the same choices in each trial"):
        suggest(study.ask(), Suggestion("kind", choices=["a", "c"]))


def _owned(**others: object) -> str:
    """Whose a trial is: this process's but for ``others``."""
    return json.dumps({**json.loads(owners.owner()), **others})


def test_what_was_stopped_or_whose_kernel_is_gone_is_tried_again_once() -> None:
    study = Search(9, "loss", seed=1).study()
    kept = {}
    for name, attributes in {
        "stopped": {OWNER: owners.owner(), ERROR: STOPPED},
        "failed": {OWNER: owners.owner(), ERROR: "ValueError"},
        "gone": {OWNER: _owned(pid=4194304)},
        "here": {OWNER: owners.owner()},
        "elsewhere": {OWNER: _owned(host="other", pid=4194304)},
        "container": {OWNER: _owned(machine="another", pid=4194304)},
        "program": {OWNER: "written by another program"},
    }.items():
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        for key, value in attributes.items():
            trial.set_user_attr(key, value)
        kept[name] = trial
    for name in ("stopped", "failed"):
        study.tell(kept[name], state=optuna.trial.TrialState.FAIL)
    assert (ended_trials(study), take_up(study, 1), take_up(study, 9), take_up(study, 9)) == (1, 1, 1, 0)
    again = [trial for trial in study.trials if AGAIN in trial.user_attrs]
    assert [trial.user_attrs[AGAIN] for trial in again] == [kept["stopped"].number, kept["gone"].number]
    for name in ("stopped", "gone"):
        assert study.ask().suggest_float("x", 0, 1) == kept[name].params["x"]
    running = [trial.number for trial in study.trials if trial.state.name == "RUNNING"]
    assert kept["here"].number in running
    assert {kept[name].number for name in ("elsewhere", "container", "program")} <= set(running)


def test_without_optuna_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(UsageError, match="pip install optuna, or tfos_magic's extra sweep"):
        Search(1, "loss")


def test_a_kernel_that_ended_and_whose_parent_does_not_reap_it_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        begun = this_host._begun(child.pid)
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert owners._is_gone(_owned(pid=child.pid, begun=begun))
        assert not owners._is_gone(owners.owner())
    finally:
        child.wait()


def test_a_database_that_another_kernel_makes_at_this_moment_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create, asked = optuna.create_study, list[str]()

    def meanwhile(**options: Any) -> optuna.Study:
        asked.append(options["study_name"])
        if len(asked) == 1:
            raise RuntimeError("(sqlite3.IntegrityError) UNIQUE constraint failed: alembic_version.version_num")
        return create(**options)

    monkeypatch.setattr(optuna, "create_study", meanwhile)
    monkeypatch.setattr(searches, "AGAIN_SECONDS", 0.0)
    assert Search(1, "loss", storage=f"sqlite:///{tmp_path}/study.db").study().study_name == searches.STUDY
    assert asked == [searches.STUDY] * 2


def test_trials_that_failed_in_optunas_own_run_count() -> None:
    study = optuna.create_study()

    def fails(trial: optuna.Trial) -> float:
        raise ValueError(trial.suggest_float("x", 0, 1))

    study.optimize(fails, n_trials=2, catch=(ValueError,))
    assert (ended_trials(study), take_up(study, 9)) == (2, 0)
    left = study.ask()
    left.set_user_attr(OWNER, "elsewhere 1 1")
    study.tell(left, state=optuna.trial.TrialState.FAIL)
    assert ended_trials(study) == 2


def test_a_grid_of_ones_own_has_as_many_trials_as_points() -> None:
    sampler = optuna.samplers.GridSampler({"x": [1, 2], "y": [3, 4]})
    assert [Search(most, "score", sampler=sampler).size for most in (3, 20)] == [3, 4]
