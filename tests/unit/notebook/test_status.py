"""What %tfos status tells a program: the cluster, what was fed, and the run."""

import json

import pytest

from tests.unit.notebook.views.simulated import epoch_end, finish, new_state, pass_time, progress, tell
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.notebook.describe import json_of, status_dict


def test_a_run_tells_its_curves_its_seconds_and_the_bytes_of_an_epoch() -> None:
    state = new_state()
    state.phase = RunPhase.RUNNING
    pass_time(state, 1.0)
    tell(state, progress(0, 0, 1, epochs=2))
    for worker in state.workers:
        worker.sent, worker.exchange_seconds = 3000, 0.5
    pass_time(state, 2.0)
    tell(state, epoch_end(0, epochs=2), epoch_end(1, epochs=2))
    finish(state)
    run = status_dict(None, [], state)["run"]
    assert (run["name"], run["strategy"], run["phase"], run["epochs"]) == ("digits", "sync", "done", 2)
    assert [epoch["loss"] for epoch in run["history"]] == [0.5, 0.25]
    assert run["seconds"] == pytest.approx(3.0)
    assert run["phases"]["start"] == pytest.approx(1.0)
    assert run["phases"]["exchange"] == pytest.approx(0.5)
    assert run["phases"]["compute"] == pytest.approx(1.5)
    assert run["sent_per_epoch"] == pytest.approx(3000.0)


def test_where_there_is_no_cluster_and_no_run_it_says_so() -> None:
    assert status_dict(None, [], None) == {"phase": "none", "feeds": [], "run": None}


def test_json_has_null_for_numbers_that_are_not_finite() -> None:
    state = tell(new_state(), epoch_end(0, loss=float("nan")), epoch_end(1, loss=float("inf")))
    text = json_of(status_dict(None, [], state))
    history = json.loads(text, parse_constant=pytest.fail)["run"]["history"]
    assert [epoch["loss"] for epoch in history] == [None, None]
