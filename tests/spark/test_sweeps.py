"""``cluster.sweep``: trials on two workers, chosen by Optuna."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from pyspark.sql import SparkSession

import tfos_magic as tfos
from tfos_magic import TFCluster
from tfos_magic.errors import DataError, TrialError, UsageError

SPACE = """
kind = tfos.suggest_categorical("kind", ["line", "curve"])
x = tfos.suggest_float("x", -5, 5)
if kind == "curve":
    score = -(x - 1.0) ** tfos.suggest_int("power", 2, 6, step=2)
else:
    score = -abs(x - 2.0)
"""
# A weight that goes to 1 from 0 by a rate: the loss of each epoch is known.
EPOCHS = 10
FIT = f"""
import keras, numpy as np, time
rate = tfos.suggest_float("rate", 1e-3, 0.1, log=True)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(rate), "mse")
slowly = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.1))
model.fit(np.ones((4, 1)), np.ones((4, 1)), batch_size=4, epochs={EPOCHS}, verbose=0, callbacks=[slowly])
"""


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=2) as made:
        yield made


def shown(study: optuna.Study) -> list[Any]:
    return [(trial.params, trial.value, trial.state.name) for trial in study.trials]


def space(trial: optuna.Trial) -> float:
    kind = trial.suggest_categorical("kind", ["line", "curve"])
    x = trial.suggest_float("x", -5, 5)
    return -((x - 1.0) ** trial.suggest_int("power", 2, 6, step=2)) if kind == "curve" else -abs(x - 2.0)


def test_one_trial_at_a_time_is_optunas_own_study_of_the_same_seed(cluster: TFCluster) -> None:
    """On both workers together, each of which asks for all values."""
    sweep = cluster.sweep(SPACE, trials=14, metric="score", seed=5, workers_per_trial=2)
    own = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=5))
    own.optimize(space, n_trials=14)
    assert shown(sweep.wait()) == shown(own)
    assert sweep.best_trial is not None
    assert sweep.best_trial.number == own.best_trial.number
    assert sweep.values == {"score": own.best_value}
    assert "14 of 14 trials have ended, best score" in repr(sweep)
    assert not sweep.notices


def loss_after(rate: float, epochs: int) -> float:
    return (1 - 2 * rate) ** (2 * (epochs - 1))


@pytest.mark.soak
def test_pruned_trials_are_those_that_optuna_prunes_and_end_early_and_the_best_model_comes_once(
    cluster: TFCluster,
) -> None:
    sweep = cluster.sweep(FIT, trials=6, metric="loss", pruner="asha", seed=3, workers_per_trial=2, outputs=["best"])
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    own = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=3), pruner=pruner)

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-3, 0.1, log=True)
        for epoch in range(1, EPOCHS + 1):
            trial.report(loss_after(rate, epoch), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss_after(rate, EPOCHS)

    own.optimize(objective, n_trials=6)
    study = sweep.wait(150)
    assert [trial.params for trial in study.trials] == [trial.params for trial in own.trials]
    assert [trial.state for trial in study.trials] == [trial.state for trial in own.trials]
    for mine, other in zip(study.trials, own.trials, strict=True):
        assert mine.intermediate_values.keys() == other.intermediate_values.keys()
        assert np.allclose([*mine.intermediate_values.values()], [*other.intermediate_values.values()], atol=1e-5)
    trained = [len(trial.run.state.history) for trial in sweep.trials if trial.verdict == "pruned"]
    assert len(trained) > 1
    assert max(trained) < EPOCHS
    rate = study.best_params["rate"]
    assert sweep.best.get_weights()[0] == pytest.approx(1 - (1 - 2 * rate) ** EPOCHS, abs=1e-5)
    whole = [trial for trial in sweep.trials if trial.verdict == "complete"]
    assert sum(trial.run.state.returned > 0 for trial in sweep.trials) <= len(whole)
    assert [trial for trial in sweep.trials if trial.values] == [sweep.best_trial]


FILES = """
import os, time
x = tfos.suggest_float("x", 0, 1)
for name in ("mine.txt", PLACE):
    with open(name, "w") as file:
        file.write(str(x))
time.sleep(0.5)
score = float(open("mine.txt").read() == str(x) and os.listdir() == ["mine.txt"])
"""


def test_trials_side_by_side_have_a_working_directory_each_and_what_others_see_too_is_told(
    cluster: TFCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    elsewhere = tmp_path / "theirs.txt"
    sweep = cluster.sweep(FILES.replace("PLACE", repr(str(elsewhere))), trials=4, metric="score")
    assert [trial.value for trial in sweep.wait(120).trials] == [1.0] * 4
    assert os.listdir() == []
    assert elsewhere.exists()
    (shared,) = (notice for notice in sweep.notices if notice.startswith("Trials write to"))
    assert shared.startswith(f"Trials write to {tmp_path}, which those of a host share")
    assert any("deleted at its end" in notice for notice in sweep.notices)
    assert repr(sweep.trials[0]).startswith("<trial ")


@pytest.mark.soak
def test_points_of_a_grid_that_differ_only_in_what_is_not_asked_for_are_told(cluster: TFCluster) -> None:
    cell = "score = tfos.suggest_int('a', 0, 1)\nif score:\n    score += tfos.suggest_int('b', 0, 1)"
    sweep = cluster.sweep(cell, trials=0, metric="score", sampler="grid")
    assert sorted(trial.value for trial in sweep.wait(120).trials) == [0.0, 0.0, 1.0, 2.0]
    (notice,) = sweep.notices
    assert notice.startswith("Not every trial asks for b,")


@pytest.mark.soak
def test_every_trial_reads_all_rows_which_are_fed_once_and_a_function_is_searched_over_too(
    cluster: TFCluster, local_session: SparkSession
) -> None:
    frame = local_session.range(101).selectExpr("cast(id as float) as x").cache()

    def count(data: Any) -> float:
        import tfos_magic

        return tfos_magic.suggest_int("batches", 1, 3) * 1000 + sum(len(row["x"]) for row in data)

    sweep = cluster.sweep(count, trials=6, metric="rows", direction="maximize", frames={"data": frame}, seed=1)
    study = sweep.wait(120)
    assert {trial.value - 1000 * trial.params["batches"] for trial in study.trials} == {101}
    feeds = [trial.run.state.feeds["data"] for trial in sweep.trials]
    assert sum(not feed.reused for feed in feeds) <= 2  # the two that began at once wait for the same
    assert len({feed.rows for feed in feeds}) == 1
    assert sweep.best == study.best_value
    assert any("repeats itself" in notice for notice in sweep.notices)  # two at a time


@pytest.mark.soak
def test_a_stored_study_goes_on_until_it_has_all_trials(cluster: TFCluster, tmp_path: Path) -> None:
    kept: dict[str, Any] = {"metric": "score", "storage": f"sqlite:///{tmp_path}/study.db", "study_name": "mine"}
    first = shown(cluster.sweep(SPACE, trials=3, **kept).wait(120))
    with pytest.raises(UsageError, match="There is a study 'mine' already"):
        cluster.sweep(SPACE, trials=5, **kept)
    second = cluster.sweep(SPACE, trials=5, resume=True, **kept)
    assert len(second.trials) == 2
    assert shown(second.wait(120))[:3] == first
    assert len(optuna.load_study(study_name="mine", storage=kept["storage"]).trials) == 5
    with pytest.raises(UsageError, match="has its 5 trials"):
        cluster.sweep(SPACE, trials=5, resume=True, **kept)
    with pytest.raises(UsageError, match="workers_per_trial is 3, and the cluster has 2"):
        cluster.sweep(SPACE, trials=5, metric="score", workers_per_trial=3)


@pytest.mark.soak
def test_two_sweeps_in_one_study_have_its_trials_together_and_the_better_of_another_is_told(
    cluster: TFCluster, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {"metric": "score", "storage": f"sqlite:///{tmp_path}/study.db", "study_name": "ours"}
    other = optuna.create_study(study_name="ours", storage=kept["storage"], direction="maximize")
    theirs = [other.ask() for _ in range(2)]  # under way
    cell = "import time\ntime.sleep(1)\nscore = tfos.suggest_float('x', 0, 1)"
    sweep = cluster.sweep(cell, trials=4, resume=True, workers_per_trial=2, **kept)
    while sweep.best_trial is None:
        time.sleep(0.01)
    other.tell(theirs[0], 2.0)
    study = sweep.wait(120)
    assert len(study.trials) == 4
    assert (sweep.count("complete"), sweep.count("stopped"), sweep.count("spared")) == (2, 0, 2)
    assert any("Other kernels have the last trials of the study under way" in notice for notice in sweep.notices)
    assert any("with score 2. This sweep's best" in notice for notice in sweep.notices)


FAILING = """
import os, time
number = tfos.suggest_int("number", 0, 5)
if number == 2:
    raise ValueError("two is not taken")
if number == 3:
    raise MemoryError
score = 1.0 * number
"""


@pytest.mark.soak
def test_a_trial_that_fails_costs_no_other_and_tells_where_and_why(cluster: TFCluster) -> None:
    sampler = optuna.samplers.GridSampler({"number": [0, 1, 2, 3, 4, 5]}, seed=1)
    sweep = cluster.sweep(FAILING, trials=9, metric="score", sampler=sampler)
    study = sweep.wait(120)  # which ends with the grid
    by_number = {trial.params["number"]: trial for trial in sweep.trials if trial.number is not None}
    assert {number for number, trial in by_number.items() if trial.verdict == "failed"} == {2, 3}
    assert "two is not taken" in by_number[2].error
    assert 'raise ValueError("two is not taken")' in by_number[2].error
    assert "Memory is short on this worker" in by_number[3].error
    assert study.best_value == 5.0
    assert 6 <= len(study.trials) < 9  # beside the last point another may be tried twice
    fast = cluster.sweep(
        "x = tfos.suggest_int('x', 1, 9)\nraise ValueError('no')", trials=9, metric="score", fail_fast=True
    )
    with pytest.raises(TrialError, match=r"Trial \d \(x \d\): ValueError on worker 0"):
        fast.wait(120)
    assert fast.count("failed") <= 2
    with pytest.raises(TrialError, match="No trial of this sweep succeeded"):
        cluster.sweep("raise ValueError('no')", trials=2, metric="score").wait(120)
    with pytest.raises(TrialError, match="It reported no 'score': its metrics are none"):
        cluster.sweep("x = 1", trials=1, metric="score").wait(120)
    with pytest.raises(UsageError, match="it calls fit of by a name"):
        fast.best_now()


def test_a_value_that_cannot_be_suggested_is_the_trials_error(cluster: TFCluster) -> None:
    sweep = cluster.sweep(
        "x = tfos.suggest_categorical('x', [(1, 2), (3,)])", trials=1, metric="x", direction="maximize"
    )
    with pytest.raises(TrialError, match="look the objects up by name"):
        sweep.wait(120)


@pytest.mark.soak
def test_what_concerns_all_trials_ends_the_sweep(cluster: TFCluster, local_session: SparkSession) -> None:
    frame = local_session.range(9).selectExpr("if(id = 3, null, cast(id as float)) as x")
    sweep = cluster.sweep("score = len(list(data))", trials=40, metric="score", frames={"data": frame})
    with pytest.raises(DataError, match="nulls"):
        sweep.wait(120)
    assert sweep.count("failed") <= 2


@pytest.mark.soak
def test_a_stop_keeps_what_is_done(cluster: TFCluster) -> None:
    cell = "import time\nscore = tfos.suggest_float('x', 0, 1)\nwhile score > 0.5: time.sleep(0.01)"
    sweep = cluster.sweep(cell, trials=40, metric="score", sampler=optuna.samplers.RandomSampler(seed=1))
    while sum(trial.params.get("x", 0) > 0.5 and not trial.verdict for trial in sweep.trials) < 2:
        time.sleep(0.05)
    sweep.stop()
    assert sweep.done
    assert sweep.count("complete") + 2 == len(sweep.study.trials)
    assert sweep.count("stopped") == 40 - sweep.count("complete")
    assert sweep.error is None
    assert cluster.run("x = 2", outputs=["x"]) == {"x": 2}


def test_a_worker_that_is_killed_loses_no_trial(
    local_session: SparkSession, cluster: TFCluster, tmp_path: Path
) -> None:
    cell = f"""
import os, time
from pathlib import Path
x = tfos.suggest_float("x", 0, 1)
begun = Path({str(tmp_path)!r}, "begun")
if not begun.exists():
    begun.write_text(str(os.getpid()))
    time.sleep(120)
score = x
"""
    sweep = cluster.sweep(cell, trials=5, metric="score", seed=2)
    while not (tmp_path / "begun").exists() or not (tmp_path / "begun").read_text():
        time.sleep(0.05)
    os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)
    study = sweep.wait(150)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 5
    assert all(trial.value == trial.params["x"] for trial in study.trials)
    assert any("restarted" in notice for notice in sweep.notices)


GROUP = Path("/sys/fs/cgroup/memory")


@pytest.mark.soak
@pytest.mark.skipif(not os.access(GROUP, os.W_OK), reason="no memory group can be made here")
def test_a_trial_that_the_system_ends_for_lack_of_memory_fails_and_is_not_run_again(
    local_session: SparkSession, tmp_path: Path
) -> None:
    cell = f"""
import os
from pathlib import Path
group, tries = Path({str(GROUP)!r}, f"tfos-test-{{os.getpid()}}"), Path({str(tmp_path)!r}, "tries")
much = tfos.suggest_categorical("much", [True, False])
if much:
    tries.open("a").write("x")
    group.mkdir()
    Path(group, "memory.limit_in_bytes").write_text(str(200 << 20))
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    taken = [os.urandom(10 << 20) for _ in range(100)]
score = 1.0
"""
    try:
        with TFCluster(local_session, workers=1) as one:
            sweep = one.sweep(cell, metric="score", sampler="grid", direction="maximize")
            study = sweep.wait(150)
    finally:
        for group in GROUP.glob("tfos-test-*"):
            group.rmdir()
    assert sorted(trial.state.name for trial in study.trials) == ["COMPLETE", "FAIL"]
    assert (tmp_path / "tries").read_text() == "x"
    (failed,) = [trial for trial in sweep.trials if trial.verdict == "failed"]
    assert "ran out of memory, and the system killed it (SIGKILL)" in failed.error
    assert "Use a smaller model or batch" in failed.error


PATCHED = """
import decimal, keras, numpy as np, tensorflow as tf
doubled = tfos.suggest_categorical("doubled", [True, False])
if doubled:
    plain = keras.layers.Dense.__call__
    keras.layers.Dense.__call__ = lambda self, x: 2 * plain(self, x)
    tf.config.optimizer.set_jit(True)
    decimal.getcontext().prec = 5
layer = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)
score = float(layer(np.ones((1, 1), "float32"))[0, 0])
left = [decimal.getcontext().prec, tf.config.optimizer.get_jit()]
score += 100 * (not doubled and left != [28, ""])
"""


@pytest.mark.soak
def test_what_a_trial_sets_and_patches_in_libraries_reaches_no_other(cluster: TFCluster) -> None:
    study = cluster.sweep(PATCHED, trials=6, metric="score", sampler="random", seed=1).wait(200)
    found = [(trial.params["doubled"], trial.value) for trial in study.trials]
    assert sorted(set(found)) == [(False, 1.0), (True, 2.0)]


def test_a_function_may_return_the_metric_among_others(cluster: TFCluster) -> None:
    def asked() -> dict[str, Any]:
        x = tfos.suggest_float("x", 0, 1)
        return {"score": x, "twice": 2 * x, "text": "x"}

    sweep = cluster.sweep(asked, trials=3, metric="score", seed=1)
    study = sweep.wait(120)
    assert [trial.value for trial in study.trials] == [trial.params["x"] for trial in study.trials]
    assert sweep.best == {"score": study.best_value, "twice": 2 * study.best_value, "text": "x"}


@pytest.mark.soak
def test_a_mistyped_metric_ends_the_sweep_with_the_first_trials(cluster: TFCluster) -> None:
    cell = "# %%tfos_sweep --metric lose\n" + FIT.replace("10", "2")
    sweep = cluster.sweep(cell, trials=12, metric="lose", direction="minimize", seed=1)
    with pytest.raises(TrialError, match=r"It reported no 'lose': its metrics are loss, .*Did you mean 'loss'\?"):
        sweep.wait(120)
    assert sweep.count("failed") <= 4
    assert sweep.count("stopped") >= 8


@pytest.mark.soak
def test_a_mistyped_metric_of_a_function_ends_the_sweep_too(cluster: TFCluster) -> None:
    sweep = cluster.sweep(
        lambda: {"score": tfos.suggest_float("x", 0, 1)}, trials=12, metric="scor", direction="maximize"
    )
    with pytest.raises(TrialError, match=r"Did you mean 'score'\?"):
        sweep.wait(120)
    assert sweep.count("failed") <= 4


@pytest.mark.soak
def test_a_sweep_without_a_better_trial_says_so(cluster: TFCluster, tmp_path: Path) -> None:
    options: dict[str, Any] = {"metric": "score", "storage": f"sqlite:///{tmp_path}/study.db", "workers_per_trial": 2}
    cluster.sweep("score = 1 + tfos.suggest_float('x', 0, 1)", trials=1, **options).wait(120)
    worse = cluster.sweep("score = tfos.suggest_float('x', 0, 1) - 1", trials=2, resume=True, **options)
    worse.wait(120)
    [notice] = worse.notices
    assert notice.startswith("The best trial of the study is number 0, of another sweep")
    assert notice.endswith("No trial of this sweep is better, so it gives no model.")
    assert worse.count("complete") == 1


@pytest.mark.soak
def test_a_sampler_that_has_tried_all_there_is_needs_no_more_trials(
    cluster: TFCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    sampler = optuna.samplers.GridSampler({"x": [1, 2, 3]})
    sweep = cluster.sweep("score = tfos.suggest_int('x', 1, 3)", trials=20, metric="score", sampler=sampler)
    study = sweep.wait(120)
    assert sorted(trial.value for trial in study.trials if trial.state.name == "COMPLETE") == [1, 2, 3]
    assert [trial.number for trial in study.trials] == [0, 1, 2]
    assert (sweep.size, sweep.count("complete"), sweep.count("stopped")) == (3, 3, 0)
    assert "Searching for the largest score." in capfd.readouterr().err


class Exhausted(optuna.samplers.RandomSampler):
    """Has tried all there is after four trials, as a sampler says that of which nobody knows it before."""

    def after_trial(self, study: optuna.Study, trial: Any, state: Any, values: Any) -> None:
        if len([each for each in study.get_trials(deepcopy=False) if each.state.is_finished()]) >= 3:
            study.stop()


@pytest.mark.soak
def test_trials_that_a_sampler_has_no_use_for_are_spared_and_leave_nothing_open(cluster: TFCluster) -> None:
    sweep = cluster.sweep("score = tfos.suggest_int('x', 1, 3)", trials=20, metric="score", sampler=Exhausted())
    study = sweep.wait(120)
    assert sweep.count("complete") == len([trial for trial in study.trials if trial.state.name == "COMPLETE"]) < 8
    assert sweep.count("complete", "spared") == 20
    assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "FAIL"}
    assert [text for text in sweep.notices if "tried all that there is" in text]


def test_an_option_that_there_is_not_is_told_with_those_of_a_sweep(cluster: TFCluster) -> None:
    with pytest.raises(UsageError, match=r"A sweep has no option 'study'\. Did you mean 'study_name'\?"):
        cluster.sweep("score = 1", trials=1, metric="score", study="mine")
