"""What the ends of the ranks add up to."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.runs import results
from tfos_magic.cluster.runs.outcome import Outcome, how_left, restart_notice
from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.cluster.runs.results import RunResults
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.cluster.runs.worker_state import WorkerState
from tfos_magic.errors import WorkerError, WorkerLost
from tfos_magic.transport.messages import RunFinished, TrainerExited

WORKERS = [WorkerState(0, host="alpha"), WorkerState(1, host="beta")]


def _error(rank: int, kind: str, message: str = "") -> RunFinished:
    return RunFinished("r", rank, "error", {"kind": kind, "message": message})


def test_two_good_ends_are_complete_and_raise_nothing() -> None:
    outcome = Outcome(2)
    outcome.finished(RunFinished("r", 0, "ok"))
    assert not outcome.complete
    assert not outcome.broken
    outcome.finished(RunFinished("r", 1, "ok"))
    assert outcome.complete
    assert outcome.reusable
    outcome.raise_error(WORKERS)


def test_the_cause_is_raised_and_not_what_the_peers_suffered_from_it() -> None:
    outcome = Outcome(2)
    outcome.finished(_error(0, "ClusterError", "a peer is gone"))
    outcome.finished(_error(1, "ValueError", "bad shape"))
    with pytest.raises(WorkerError, match="ValueError on worker 1 on beta: bad shape"):
        outcome.raise_error(WORKERS)


def test_what_peers_suffered_is_unexplained_until_its_cause_is_known() -> None:
    outcome = Outcome(2)
    for rank in (0, 1):
        outcome.finished(_error(rank, "ClusterError", "a peer is gone"))
    assert outcome.complete
    assert outcome.unexplained
    outcome.lost(TrainerExited(1, 2, 0, 9, "", ""))
    assert not outcome.unexplained
    with pytest.raises(WorkerLost, match="parameter server"):
        outcome.raise_error(WORKERS)


def test_the_same_error_on_all_ranks_is_told_for_the_lowest() -> None:
    outcome = Outcome(2)
    for rank in (1, 0):
        outcome.finished(_error(rank, "ValueError"))
    with pytest.raises(WorkerError) as caught:
        outcome.raise_error(WORKERS)
    assert caught.value.rank == 0


def test_a_trainer_killed_by_a_signal_is_named_with_host_and_signal() -> None:
    outcome = Outcome(2)
    outcome.finished(_error(0, "ClusterError", "a peer is gone"))
    outcome.lost(TrainerExited(1, 1, 0, 9, "last words"))
    assert outcome.complete
    assert not outcome.reusable
    with pytest.raises(WorkerLost, match=r"Worker 1 on beta was killed by signal 9 \(SIGKILL(?s:.*)last words"):
        outcome.raise_error(WORKERS)


def test_a_rank_that_never_ended_is_named() -> None:
    outcome = Outcome(2)
    outcome.finished(RunFinished("r", 0, "stopped"))
    with pytest.raises(WorkerLost, match="Worker 1 on beta did not end"):
        outcome.raise_error(WORKERS)


def test_a_rank_that_is_stuck_is_lost_and_not_the_one_that_waited_for_it() -> None:
    outcome = Outcome(2)
    outcome.finished(_error(0, "ClusterError", "no answer"))
    with pytest.raises(WorkerLost, match="Worker 1 on beta did not end"):
        outcome.raise_error(WORKERS)


def test_want_of_memory_is_the_cells_error_and_says_what_to_do() -> None:
    outcome = Outcome(1)
    outcome.finished(_error(0, "ResourceExhaustedError", "OOM when allocating"))
    with pytest.raises(WorkerError, match=r"Memory is short on this worker"):
        outcome.raise_error(WORKERS)


def test_an_error_says_why_no_name_came_back() -> None:
    def told(end: RunFinished | None, asked: bool = True, worker: str = "running", restarts: int = 0) -> str:
        state = RunState("r", "run 1", "sync", [WorkerState(0, state=worker)], restarts=restarts)
        results = RunResults(state, RunRequest("", outputs=["model"] if asked else []))
        results.note({0: end} if end is not None else {})
        return results.rescue()[1]

    torn = RunFinished("r", 0, "error", clean=False)
    assert "the workers lost each other" in told(torn)
    assert told(torn, asked=False) == ""
    assert told(torn, worker="waiting") == ""
    assert "Nothing came back with -o: the first worker was ended" in told(None, worker="waiting", restarts=1)
    assert told(RunFinished("r", 0, "error", missing=["w: the cell did not define it"])).endswith("define it.")


def test_an_interrupt_does_not_leave_keras_half_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def interrupted_once(what: str, until: float, work: object) -> object:
        asked.append(what)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return work

    monkeypatch.setattr(results, "tell_while", interrupted_once)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    results._load_keras(bytearray(b"plain values"))
    assert not asked
    results._load_keras(bytearray(b"a model of keras.src"))
    assert asked == ["TensorFlow to load in the notebook"] * 2


def test_a_run_that_was_stopped_says_how_it_left_its_workers() -> None:
    membership = Membership(2)
    cluster: Any = SimpleNamespace(membership=membership)
    assert how_left(None) == " before it began."
    assert how_left(cluster) == "; its workers are free again."
    membership.unanswered = lambda: "the Spark Connect server at host:1, which does not answer"
    assert how_left(cluster) == ". Its cluster waits for the Spark Connect server at host:1, which does not answer."
    membership.fail("The Spark Connect server at host:1 has not answered for 25 s.", session=True)
    assert (
        how_left(cluster)
        == ", and its cluster has ended: The Spark Connect server at host:1 has not answered for 25 s."
    )


def test_a_loss_behind_the_last_epoch_is_not_one_in_it() -> None:
    """The cell was computing something else by then."""
    loss = WorkerLost(1, "beta", "was killed by signal 9 (SIGKILL)")
    state = RunState("r", "run 1", "sync", WORKERS, epochs=3, epoch=2, history=[{}, {}], epochs_done=[0, 1], restarts=1)
    assert "(SIGKILL) in epoch 3: restarted from the beginning (1 of 2 restarts)." in restart_notice(loss, state, "", 2)
    state.history.append({})
    state.epochs_done.append(2)
    assert "(SIGKILL) after epoch 3: restarted from epoch 3 (1" in restart_notice(loss, state, "epoch 3", 2)
