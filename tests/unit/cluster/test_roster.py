"""Who is in a cluster: agents come, fall silent, end and are replaced."""

from __future__ import annotations

import time

import pytest

from tfos_magic.cluster import roster as roster_module
from tfos_magic.cluster.roster import Roster
from tfos_magic.cluster.workers import ClusterPhase, describe_exit
from tfos_magic.errors import ClusterError, WorkerLost
from tfos_magic.protocol import AgentEnded, Heartbeat, Output, Register, TrainerExited, TrainerReady


def _register(slot: int, job: str) -> Register:
    return Register(slot, "alpha", 100 + slot, 4000 + slot, "grpc://alpha:1", job)


def _running(timeout: float = 5.0) -> Roster:
    """Two workers of job one, their trainers ready."""
    roster = Roster(2, timeout)
    roster.gather("one")
    for slot in (0, 1):
        roster.note(b"one-%d" % slot, _register(slot, "one"))
    roster.await_agents(1, "tcp://alpha:1")
    roster.begin_generation()
    for rank in (0, 1):
        roster.note(b"one-%d" % rank, TrainerReady(1, rank, 200 + rank))
    return roster


def test_a_cluster_is_ready_when_all_trainers_are() -> None:
    roster = _running()
    assert roster.ready
    roster.check_agents()


def test_the_agent_that_said_nothing_is_named_and_not_those_that_were_ended_for_it() -> None:
    roster = _running()
    roster.note(b"one-1", Output("", 1, "stdout", "last words\n"))
    roster.note(b"one-0", AgentEnded("signal 15"))
    assert not roster.ready
    with pytest.raises(WorkerLost, match=r"Worker 1 on alpha was lost(?s:.*)last words") as caught:
        roster.check_agents()
    assert caught.value.rank == 1
    assert roster.phase is ClusterPhase.RUNNING


def test_a_barrier_stage_that_spark_runs_again_means_that_agents_were_lost() -> None:
    roster = _running()
    roster.note(b"one-9", _register(0, "one"))
    assert roster.lost
    assert roster.stray(b"one-9")


def test_agents_of_a_job_that_was_given_up_are_strays() -> None:
    roster = _running()
    roster.lose("gone")
    before = roster.gather("two")
    assert before == [b"one-0", b"one-1"]
    assert roster.stray(b"one-0")
    assert not roster.stray(b"two-0")
    roster.note(b"one-0", _register(0, "one"))
    for slot in (1, 0):
        roster.note(b"two-%d" % slot, _register(slot, "two"))
    roster.await_agents(1, "tcp://alpha:1")
    assert [worker.peer for worker in roster.workers] == [b"two-0", b"two-1"]
    assert not roster.lost
    assert not roster.stray(b"two-0")


def test_logs_of_a_rank_survive_its_agent() -> None:
    roster = _running()
    roster.note(b"one-0", Output("", 0, "stdout", "before\n"))
    roster.lose("gone")
    roster.gather("two")
    for slot in (0, 1):
        roster.note(b"two-%d" % slot, _register(slot, "two"))
    roster.await_agents(1, "tcp://alpha:1")
    assert list(roster.workers[0].log) == ["before"]


def test_a_silent_agent_is_lost_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    roster, now = _running(), time.monotonic()
    for second in range(1, 5):
        monkeypatch.setattr(roster_module.time, "monotonic", lambda second=second: now + second)
        roster.note(b"one-0", Heartbeat())
        roster.check_agents()
    monkeypatch.setattr(roster_module.time, "monotonic", lambda: now + 6)
    with pytest.raises(WorkerLost, match="Worker 1 on alpha did not answer for"):
        roster.check_agents()


def test_a_kernel_that_was_suspended_takes_nobody_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    roster, now = _running(), time.monotonic()
    monkeypatch.setattr(roster_module.time, "monotonic", lambda: now + 3600)
    roster.check_agents()
    assert not roster.lost


def test_a_trainer_that_dies_while_it_loads_is_lost_at_once() -> None:
    roster = _running()
    roster.begin_generation()
    roster.note(b"one-1", TrainerExited(2, 1, 0, 9, "loading"))
    with pytest.raises(WorkerLost, match=r"Worker 1 on alpha was killed by signal 9 \(SIGKILL.*while it was starting"):
        roster.await_trainers(1)


def test_a_trainer_that_cannot_load_says_why_and_is_not_taken_for_lost() -> None:
    roster = _running()
    roster.begin_generation()
    roster.note(b"one-1", TrainerReady(2, 1, 7, error="ImportError: no tensorflow"))
    roster.note(b"one-1", TrainerExited(2, 1, 0, 0, ""))
    with pytest.raises(ClusterError, match="no tensorflow") as caught:
        roster.await_trainers(1)
    assert not isinstance(caught.value, WorkerLost)


@pytest.mark.parametrize(
    ("exited", "words"),
    [
        (TrainerExited(1, 0, 0, 9, ""), "was killed by signal 9 (SIGKILL, perhaps out of memory)"),
        (TrainerExited(1, 0, 0, 6, ""), "was killed by signal 6 (SIGABRT, perhaps for want of memory)"),
        (TrainerExited(1, 0, 0, 11, ""), "was killed by signal 11 (SIGSEGV)"),
        (TrainerExited(1, 0, 3, 0, ""), "ended with exit code 3"),
        (
            TrainerExited(1, 0, 0, 9, "", "did not answer for 20 s and was ended"),
            "did not answer for 20 s and was ended",
        ),
    ],
)
def test_the_end_of_a_trainer_is_told_in_words(exited: TrainerExited, words: str) -> None:
    assert describe_exit(exited) == words
