"""What the parts of a dashboard send to the page, and what they say of their run."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
import weakref
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import ipywidgets
import pytest

from tests.unit.notebook.views.simulated import ToldFeeds, ToldRun, finish
from tfos_magic.cluster.runs.known_runs import KnownRuns
from tfos_magic.cluster.runs.run_queue import RunQueue
from tfos_magic.cluster.runs.state import FeedState
from tfos_magic.cluster.workers import ClusterStatus, WorkerStatus
from tfos_magic.errors import ClusterError, UsageError
from tfos_magic.values.suggestions import chosen
from tfos_magic.widgets import (
    ClusterView,
    Compare,
    Curves,
    FeedTable,
    Launcher,
    LogView,
    Progress,
    RunPanel,
    StopButton,
    WorkerTable,
)
from tfos_magic.widgets.dashboard import Dashboard
from tfos_magic.widgets.launcher import _controls, _exact
from tfos_magic.widgets.module import MODULE
from tfos_magic.widgets.panel import PANELS

OF_A_RUN = (Progress, Curves, WorkerTable, LogView, StopButton, FeedTable, RunPanel)
Sent = list[tuple[str, Any]]


@pytest.mark.parametrize("part", OF_A_RUN)
def test_a_part_follows_its_run_and_may_be_given_another(part: Any, sent: Sent) -> None:
    shown, run = part(), ToldRun().go_on(12)
    assert (shown.phase, shown.data.picture["headline"]) == ("none", "No run yet")
    shown.run = run
    assert (shown.phase, shown.epoch) == ("running", 0)
    seen = []
    shown.observe(lambda change: seen.append(change["new"]), "epoch")
    run.go_on(14).go_on()
    assert seen == [1, 2]
    assert (shown.phase, shown.fraction) == ("done", 1.0)
    assert shown.metrics["val_loss"] == pytest.approx(0.2)
    shown.run = None
    assert shown.data is PANELS.of(None)
    assert (shown.phase, shown.epoch, shown.fraction, shown.metrics) == ("none", 0, 0.0, {})
    shown.close()


def test_parts_share_what_is_sent_of_a_run(sent: Sent) -> None:
    """Twenty parts cost the channel less than twice what one does."""

    def sent_for(parts: int, number: int) -> int:
        run = ToldRun(world=20, number=number)
        shown = [OF_A_RUN[index % len(OF_A_RUN)](run) for index in range(parts)]
        opened = len(sent)
        for _ in range(30):
            run.go_on(1)
        assert len(shown) == parts
        return sum(len(json.dumps(data)) for kind, data in sent[opened:] if kind == "comm_msg")

    assert sent_for(20, 2) < 2 * sent_for(1, 1)


def test_the_files_of_the_page_are_one_module_in_which_a_name_is_one_thing() -> None:
    named = Counter(re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", MODULE, re.MULTILINE))
    assert [name for name, count in named.items() if count > 1] == []
    assert len(named) > 50


def test_only_the_panel_brings_the_drawing_code(sent: Sent) -> None:
    run = ToldRun()
    Progress(run)
    opened = len(sent)
    for part in OF_A_RUN:
        part(run)
    assert max(len(json.dumps(data)) for _, data in sent[opened:]) < 4_000


def test_a_metric_that_is_asked_for_has_a_curve_however_many_there_are(sent: Sent) -> None:
    run = ToldRun().go_on()
    for history in run.state.history:
        history.update({f"m{number}": float(number) for number in range(20)})
    curves = Curves(run, metrics=["m17"])
    charts = {chart["name"]: chart["usual"] for chart in curves.data.charts}
    assert charts == {"loss": True, **{f"m{number}": True for number in range(4)}, "accuracy": True} | {
        "m17": False,
        "rows/s": True,
    }
    assert "m17" in curves.picture()["text/html"]
    assert ">m17<" not in RunPanel(run).picture()["text/html"]
    Compare([run], metrics=["m18"]).shown = ["m19"]
    assert {"m18", "m19"} < {chart["name"] for chart in curves.data.charts}


def test_a_run_that_is_ticked_off_stays_so_and_colours_stay_where_others_come_and_go(sent: Sent) -> None:
    runs = [ToldRun(number=number) for number in range(4)]
    compare = Compare(runs[:3])
    compare.hidden = [1]
    compare.runs = runs[1:]
    assert compare.hidden == [0]
    assert [about["tone"] for about in compare.about] == [1, 2, 0]
    compare.runs = runs[2:]
    assert compare.hidden == []


def test_a_dashboard_that_is_closed_is_forgotten(sent: Sent) -> None:
    queue: RunQueue[Any] = RunQueue()
    known, run = KnownRuns(queue), ToldRun()
    run.request.alone, run.runs = False, [run]
    dashboard = Dashboard(known)
    queue.join(run)
    assert dashboard.compare.runs == [run]
    dashboard.close()
    forgotten = weakref.ref(dashboard)
    del dashboard
    gc.collect()
    assert forgotten() is None


def test_metrics_that_are_no_numbers_reach_observers_as_they_are_and_the_page_as_none(sent: Sent) -> None:
    run = ToldRun().go_on()
    run.state.metrics.update(bad=float("nan"), large=float("inf"))
    shown = Progress(run)
    assert shown.metrics["large"] == float("inf")
    json.dumps(shown.get_state(), default=str, allow_nan=False)


def test_a_feed_that_was_cut_off_says_so(sent: Sent) -> None:
    run = ToldRun()
    run.state.feeds["late"] = FeedState("late")
    assert FeedTable(run).data.picture["feeds"][-1]["state"] == "feeding"
    finish(run.state, "stopped")
    PANELS.of(run).draw(run.state)
    assert FeedTable(run).data.picture["feeds"][-1]["state"] == "not fed"


def test_the_button_of_a_part_asks_the_run_to_stop(sent: Sent) -> None:
    run = ToldRun()
    StopButton(run).data._handle_custom_msg({"ask": "stop"}, [])
    assert run.stops == 1


def test_a_dataframe_of_a_run_is_released_once_and_what_stands_in_the_way_is_shown(sent: Sent) -> None:
    cluster, ask = ToldFeeds(), {"ask": "release", "name": "train"}
    table = FeedTable(ToldRun().go_on(), cluster=cluster)  # type: ignore[arg-type]
    cluster.busy = "run 2 goes on"
    table._handle_custom_msg(ask, [])
    assert (table.released, table.error) == ([], "run 2 goes on")
    cluster.busy = ""
    for _ in range(2):
        table._handle_custom_msg(ask, [])
    table._handle_custom_msg({"ask": "release", "name": "another"}, [])
    assert (table.released, table.error, cluster.released) == (["train"], "", ["the DataFrame"])
    table.run = ToldRun(number=2)
    assert table.released == []


def test_each_part_leaves_a_picture_of_its_own(sent: Sent) -> None:
    run = ToldRun().go_on()
    pictures = {part.__name__: part(run).picture()["text/html"] for part in OF_A_RUN}
    assert "<svg" in pictures["Curves"]
    assert "worker 0" in pictures["WorkerTable"]
    assert "1,920 rows" in pictures["FeedTable"]
    assert "Trained on 2 workers" in pictures["Progress"]
    assert all(part in pictures["RunPanel"] for part in ("<svg", "worker 0", "1,920 rows", "Trained on"))
    assert Progress().picture()["text/plain"] == "No run yet."


def test_compared_runs_are_told_apart_by_what_differs(sent: Sent) -> None:
    one, two = ToldRun(lr=0.1, units=8).go_on(), ToldRun(number=2, lr=0.01, units=8)
    compare = Compare([one])
    assert compare.about == [{"name": "run 1", "settings": {"lr": "0.1", "units": "8", "workers": "2"}, "tone": 0}]
    compare.add(two, "the second")
    assert compare.about == [
        {"name": "run 1", "settings": {"lr": "0.1"}, "tone": 0},
        {"name": "the second", "settings": {"lr": "0.01"}, "tone": 1},
    ]
    assert (compare.run, compare.phase) == (two, "starting")
    assert compare.picture()["text/plain"].splitlines()[0].split() == [
        "run",
        "lr",
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
        "time",
        "state",
    ]


def train(digits: Any, lr: float = 0.01, units: int = 32, deep: bool = False, name: str = "m", loss: Any = None) -> Any:
    raise AssertionError("a launcher submits")


def test_controls_come_of_values_and_defaults() -> None:
    frame = object()
    controls, fixed = _controls(train, {"digits": frame, "lr": (1e-4, 1e-1, "log"), "units": [16, 32, 64]})
    assert {name: type(control).__name__ for name, control in controls.items()} == {
        "lr": "FloatLogSlider",
        "units": "Dropdown",
        "deep": "Checkbox",
        "name": "Text",
    }
    assert fixed == {"digits": frame}
    assert (controls["lr"].value, controls["units"].value) == (0.01, 32)
    controls, _ = _controls(train, {"lr": (0.5, 1.0), "units": (1, 9), "loss": ipywidgets.IntSlider(value=3)})
    assert [controls[name].value for name in ("lr", "units", "loss")] == [0.75, 5, 3]


def test_what_the_function_says_is_trained_whatever_steps_a_slider_might_have() -> None:
    def train(l2: float = 0.00025, drop: float = 0.33, rate: float = 0.0137, units: int = 20) -> None: ...

    bounds = {"l2": (0.0, 0.01), "drop": (0.0, 0.9), "rate": (1e-4, 1.0, "log"), "units": (16, 1024, "log")}
    controls, _ = _controls(train, bounds)
    assert [controls[name].step for name in ("l2", "drop", "rate")] == [None] * 3
    assert {name: _exact(control) for name, control in controls.items()} == {
        "l2": 0.00025,
        "drop": 0.33,
        "rate": 0.0137,
        "units": 20,
    }


CELL = """
rate = tfos.suggest_float("rate", 1e-4, 1e-2, log=True)
share = tfos.suggest_float("share", 0, 1)
units = tfos.suggest_int("units", 16, 64, step=16, default=32)
depth = tfos.suggest_int("depth", 1, 8, log=True)
kind = tfos.suggest_categorical("kind", ["relu", "tanh"])
"""


def test_what_a_cell_suggests_has_controls(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfos_magic.widgets.launcher.Run", ToldRun)
    asked: list[tuple[str, dict[str, Any]]] = []

    def submit(cell: str, **options: Any) -> ToldRun:
        asked.append((cell, {**options, **chosen()}))
        return ToldRun()

    launcher = Launcher(partial(submit, CELL, label="y"))
    assert {name: type(control).__name__ for name, control in launcher.controls.items()} == {
        "rate": "FloatLogSlider",
        "share": "FloatSlider",
        "units": "Dropdown",
        "depth": "IntSlider",
        "kind": "Dropdown",
    }
    assert launcher.chosen == {"rate": pytest.approx(1e-3), "share": 0.5, "units": 32, "depth": 2, "kind": "relu"}
    launcher.controls["units"].value = 64
    launcher.train()
    assert asked == [(CELL, {"label": "y", **launcher.chosen})]
    assert chosen() == {}


@pytest.mark.parametrize("bounds", [(1,), (2, 1), (0, 1, "log"), ("a", "b"), (1, 2, 3)])
def test_bounds_that_are_none_are_refused(bounds: Any) -> None:
    with pytest.raises(UsageError, match=r"lr=.*give \(low, high\)"):
        _controls(train, {"lr": bounds})


def test_a_launcher_keeps_its_runs_and_shows_what_went_wrong(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfos_magic.widgets.launcher.Run", ToldRun)
    launcher = Launcher(lambda lr, units=8: ToldRun(number=len(launcher.runs) + 1, lr=lr), lr=[0.1, 0.2])
    launcher._button.click()
    launcher.controls["lr"].value = 0.2
    launcher._button.click()
    assert [run.state.settings for run in launcher.runs] == [{"lr": "0.1"}, {"lr": "0.2"}]
    assert [about["name"] for about in launcher.compare.about] == ["1: lr 0.1, units 8", "2: lr 0.2, units 8"]
    failing = Launcher(lambda lr: 1 / 0, lr=1)
    failing._button.click()
    assert "ZeroDivisionError: division by zero" in failing._error.value
    wrong = Launcher(lambda lr: lr, lr=1)
    wrong._button.click()
    assert "The function gave int, not a run" in wrong._error.value


class ToldMap:
    done = False
    name, runs = "fit", (None,) * 4

    def __repr__(self) -> str:
        return "<fit: 1 of 4 items have ended, 2 under way>"


class ToldCluster:
    size = 2

    def __init__(self) -> None:
        self.queue: RunQueue[Any] = RunQueue()
        self.asked: list[Any] = []
        self.go_on = threading.Event()

    def status(self) -> ClusterStatus:
        worker = WorkerStatus(0, "127.0.0.1", 41, 40, "cpu", "idle", 512_000_000, 0)
        return ClusterStatus("running", "local[4]", 1, (worker,), "2.21.0", "3.15.0")

    def scale(self, workers: int) -> None:
        self.go_on.wait(10)
        self.asked.append(workers)
        raise ClusterError("there is room for three.")


def test_a_cluster_is_shown_and_asked_for_another_size(sent: Sent) -> None:
    cluster: Any = ToldCluster()
    view = ClusterView(cluster)
    try:
        assert view.status["about"] == "1 worker · local[4] · TensorFlow 2.21.0, Keras 3.15.0"
        assert view.status["workers"] == [["0", "127.0.0.1 · pid 41", "idle", "cpu", "512 MB", "0 B"]]
        assert view.status["runs"] == "Nothing runs."
        assert "pid 41" in cluster.status()._repr_mimebundle_()["text/html"]
        one = SimpleNamespace(name="run 7", done=False, phase=SimpleNamespace(value="running"))
        one.runs = [one]
        cluster.queue.join(one)
        view.look()
        assert view.status["runs"] == "run 7 is running."
        cluster.queue.leave(one)
        cluster.queue.join(ToldMap())
        cluster.queue.join(one)
        view.look()
        assert view.status["runs"] == "fit: 1 of 4 items have ended, 2 under way; 1 run next."
        view._handle_custom_msg({"ask": "scale", "workers": 9}, [])
        assert view.status["headline"] == "Scaling to 9 workers …"
        cluster.go_on.set()
        deadline = time.monotonic() + 10
        while not view.status["error"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (cluster.asked, view.status["error"]) == ([9], "there is room for three.")
        assert "1 run next" in view.status["runs"]
        cluster.queue.leave(cluster.queue.runs[0])
        view.look()
        assert view.status["error"] == ""  # as another run has the workers
    finally:
        view.close()


def test_an_observer_that_raises_holds_no_part_up(sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    run: Any = ToldRun()
    one, other = Progress(run), Progress(run)

    def fail(_: Any) -> None:
        raise ValueError("on purpose")

    one.observe(fail, "epoch")
    run.go_on()
    assert (one.phase, other.phase, Progress(run).phase) == ("done", "done", "done")
    assert [record.message for record in caplog.records] == ["An observer of 'epoch' of a Progress failed."]


def test_what_is_no_run_is_refused_and_a_run_may_follow(sent: Sent) -> None:
    part = Progress()
    with pytest.raises(UsageError, match="int is not a run"):
        part.run = 3
    part.run = ToldRun().go_on()
    assert part.phase == "done"
    with pytest.raises(UsageError, match="None is not a run"):
        Compare([None])


def test_a_launcher_shows_the_run_that_trains_and_then_the_next(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfos_magic.widgets.launcher.Run", ToldRun)
    made = [ToldRun(number=number) for number in (1, 2)]
    launcher = Launcher(lambda rate=0.1: made[len(launcher.runs)])
    launcher.train()
    launcher.train()
    assert launcher._progress.run is launcher._stop.run is made[0]
    made[0].go_on()
    assert launcher._progress.run is launcher._stop.run is made[1]


def test_whole_bounds_by_logarithms_give_whole_numbers_and_other_names_are_refused() -> None:
    def train(units: int = 16) -> None: ...

    controls, _ = _controls(train, {"units": (16, 1024, "log")})
    assert (controls["units"].value, {type(value) for value in controls["units"].options}) == (16, {int})
    with pytest.raises(UsageError, match=r"takes no 'untis'\. Did you mean 'units'"):
        _controls(train, {"untis": (16, 64)})


def test_an_empty_panel_tells_of_no_time(sent: Sent) -> None:
    assert RunPanel().data.picture["phases"] == []


def test_a_launcher_takes_lambdas_wherever_they_stand(sent: Sent) -> None:
    for train in (lambda rate: 3,):
        assert [*Launcher(train, rate=(0.1, 0.2)).controls] == ["rate"]
    several = [
        (lambda rate: 3),
        (lambda rate: 4)]  # fmt: skip
    assert [[*Launcher(train, rate=(0.1, 0.2)).controls] for train in several] == [["rate"], ["rate"]]


def test_what_is_no_run_or_cluster_is_refused_in_one_line(sent: Sent, capfd: pytest.CaptureFixture[str]) -> None:
    for part in (Progress, Curves, RunPanel, Compare):
        with pytest.raises(UsageError, match="int is not a run"):
            part(3)
        with pytest.raises(UsageError, match=r"SimpleNamespace is not a run but has several: give one of its \.runs"):
            part(SimpleNamespace(runs=[], run_id="a map"))
    with pytest.raises(UsageError, match="int is not a cluster"):
        ClusterView(3)  # type: ignore[arg-type]
    gc.collect()
    assert "Exception ignored" not in capfd.readouterr().err
