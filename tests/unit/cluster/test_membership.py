"""Who is in a cluster: agents come, fall silent, end and are replaced."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.cluster import membership as membership_module
from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.startup import heard_by
from tfos_magic.cluster.subset import SubsetMembership, WorkerSubset
from tfos_magic.cluster.workers import ClusterPhase, describe_exit
from tfos_magic.errors import ClusterError, ExecutorError, StartTimeout, WorkerLost
from tfos_magic.transport.messages import AgentEnded, Heartbeat, Output, Register, TrainerExited, TrainerReady

pytestmark = pytest.mark.slow


def _register(slot: int, job: str) -> Register:
    return Register(slot, "alpha", 100 + slot, 4000 + slot, "grpc://alpha:1", job)


def _running(timeout: float = 5.0) -> Membership:
    """Two workers, of a job each, their trainers ready."""
    membership = Membership(2, timeout)
    membership.gather({0: "job-0", 1: "job-1"})
    for slot in (0, 1):
        membership.note(b"job-%d-a" % slot, _register(slot, f"job-{slot}"))
    membership.await_agents(1, "tcp://alpha:1")
    membership.begin_generation()
    for rank in (0, 1):
        membership.note(b"job-%d-a" % rank, TrainerReady(1, rank, 200 + rank))
    return membership


def test_a_cluster_is_ready_when_all_trainers_are() -> None:
    membership = _running()
    assert membership.ready
    membership.check_agents()


def test_the_agent_that_said_nothing_is_named_and_not_one_that_said_why_it_ended() -> None:
    membership = _running()
    membership.note(b"job-1-a", Output("", 1, "stdout", "last words\n"))
    membership.note(b"job-0-a", AgentEnded("signal 15"))
    membership.lose("its Spark job ended", 1)
    assert not membership.ready
    with pytest.raises(WorkerLost, match=r"Worker 1 on alpha was lost(?s:.*)last words") as caught:
        membership.check_agents()
    assert caught.value.rank == 1
    assert "; so was worker 0 on alpha." in str(caught.value)
    assert membership.phase is ClusterPhase.RUNNING


def test_what_a_host_takes_with_it_is_missing_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "PAUSE_SECONDS", 0.8)
    membership = _running(timeout=2.0)
    zero, one = membership.workers
    zero.seen, one.seen = time.monotonic() - 3.0, time.monotonic() - 1.0
    with pytest.raises(WorkerLost, match=r"Worker 0 on alpha did not answer for \d+ s"):
        membership.check_agents()
    assert membership.missing() == [0, 1]  # the other one falls silent for as long a second later
    membership = _running(timeout=30.0)
    membership.lose("gone", 0)
    membership.workers[1].seen -= 1.0
    heard = threading.Timer(0.5, membership.note, (b"job-1-a", Heartbeat()))
    heard.start()
    assert membership.missing() == [0]
    heard.join()


def test_a_copy_of_an_agents_task_gets_no_work_and_shows_the_loss_of_one_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    membership, now = _running(timeout=20), time.monotonic()
    membership.note(b"job-0-b", _register(0, "job-0"))
    assert not membership.arrivals.is_stray(b"job-0-b"), "its end would end the other"
    assert membership.peers == [b"job-0-a", b"job-1-a"]
    membership.note(b"job-0-b", Heartbeat())
    assert not membership.lost
    monkeypatch.setattr(membership_module.time, "monotonic", lambda: now + 6)
    membership.note(b"job-1-a", Heartbeat())
    membership.note(b"job-0-b", Heartbeat())
    assert membership.missing() == [0]
    assert membership.gather({0: "other"}) == [b"job-0-a", b"job-0-b"]
    assert membership.arrivals.is_stray(b"job-0-b")


@pytest.mark.parametrize("endpoint", ["tcp://alpha:1", ""])
def test_workers_that_do_not_come_are_told_of_with_an_address_that_they_dial_if_they_do(endpoint: str) -> None:
    membership = Membership(2)
    membership.gather({0: "job-0", 1: "job-1"})
    with pytest.raises(StartTimeout, match=r"0 of 2 workers came up in time\. .* more --start-timeout\.$") as caught:
        membership.await_agents(0, endpoint)
    assert ("cannot reach tcp://alpha:1" in str(caught.value)) == bool(endpoint)
    assert ("TFOS.driver_host" in str(caught.value)) == bool(endpoint)


def test_of_a_task_that_began_anew_while_others_were_awaited_the_later_agent_counts() -> None:
    membership = Membership(2)
    membership.gather({0: "job-0", 1: "job-1"})
    membership.note(b"job-0-a", _register(0, "job-0"))
    membership.note(b"job-0-b", _register(0, "job-0"))
    membership.note(b"job-1-a", _register(1, "job-1"))
    membership.await_agents(1, "tcp://alpha:1")
    assert [worker.peer for worker in membership.workers] == [b"job-0-b", b"job-1-a"]


def test_a_trainer_that_died_loading_is_the_one_whose_agent_said_so_whatever_rank_it_gives() -> None:
    membership = _running()
    membership.begin_generation()
    membership.note(b"job-1-a", TrainerExited(2, 7, 1, 0, ""))
    with pytest.raises(WorkerLost, match="Worker 1 on alpha ended with exit code 1 while it was starting"):
        membership.await_trainers(1)


def test_an_agent_that_was_lost_is_replaced_and_the_others_stay() -> None:
    membership = _running()
    membership.lose("gone", 0)
    assert membership.missing() == [0]
    assert membership.gather({0: "other"}) == [b"job-0-a"]
    assert membership.arrivals.is_stray(b"job-0-a"), "it was given up"
    assert not membership.arrivals.is_stray(b"other-a")
    assert not membership.arrivals.is_stray(b"job-1-a")
    assert [membership.arrivals.slot_of(job) for job in ("job-0", "job-1", "other")] == [None, 1, 0]
    membership.note(b"job-0-a", _register(0, "job-0"))
    membership.note(b"other-a", _register(0, "other"))
    membership.await_agents(1, "tcp://alpha:1")
    assert [worker.peer for worker in membership.workers] == [b"other-a", b"job-1-a"]
    assert not membership.lost
    assert not membership.missing()


def test_an_agent_that_is_lost_while_another_is_replaced_is_missing_still() -> None:
    membership = _running()
    membership.lose("gone", 0)
    membership.gather({0: "other"})
    membership.lose("gone too", 1)
    membership.note(b"other-a", _register(0, "other"))
    membership.await_agents(1, "tcp://alpha:1")
    assert membership.missing() == [1]
    with pytest.raises(WorkerLost, match="Worker 1"):
        membership.check_agents()


def test_who_awaits_a_loss_hears_of_one_that_another_thread_is_mending() -> None:
    membership = _running()
    membership.lose("gone", 0)
    membership.gather({0: "other"})
    with pytest.raises(WorkerLost, match="Worker 0"):
        membership.await_loss(0)


def test_an_agent_that_another_part_had_replaced_is_lost_to_the_part_that_had_it() -> None:
    membership = _running()
    part = SubsetMembership(membership, [0])
    part.check_agents()
    membership.lose("gone", 0)
    membership.gather({0: "other"})
    membership.note(b"other-a", _register(0, "other"))
    membership.await_agents(1, "tcp://alpha:1")
    membership.check_agents()
    with pytest.raises(WorkerLost, match="Worker 0"):
        part.check_agents()
    part.renew()
    part.check_agents()


def test_a_worker_that_is_lost_is_shown_as_lost_until_another_takes_its_place() -> None:
    membership = _running()
    membership.lose("its Spark job ended", 1)
    assert [worker.state for worker in membership.status("local").workers] == ["ready", "lost"]
    membership.gather({1: "job-2"})
    assert [worker.state for worker in membership.status("local").workers] == ["ready", "lost"]
    membership.note(b"job-2-a", _register(1, "job-2"))
    membership.await_agents(1, "tcp://alpha:1")
    assert [worker.state for worker in membership.status("local").workers] == ["loading TensorFlow"] * 2
    membership.note(b"job-0-a", TrainerReady(1, 0, 200))
    membership.note(b"job-2-a", TrainerReady(1, 1, 300))
    assert [worker.state for worker in membership.status("local").workers] == ["ready", "ready"]


def test_an_agent_that_could_not_be_replaced_is_missing_still() -> None:
    membership = _running()
    membership.lose("gone", 0)
    membership.gather({0: "other"})
    with pytest.raises(StartTimeout):
        membership.await_agents(0, "tcp://alpha:1")
    membership.give_up([0])
    assert membership.missing() == [0]
    with pytest.raises(WorkerLost, match="Worker 0"):
        membership.check_agents()


def test_logs_of_a_rank_survive_its_agent() -> None:
    membership = _running()
    membership.note(b"job-0-a", Output("", 0, "stdout", "before\n"))
    membership.lose("gone", 0)
    membership.gather({0: "other"})
    membership.note(b"other-a", _register(0, "other"))
    membership.await_agents(1, "tcp://alpha:1")
    assert list(membership.workers[0].log) == ["before"]


def test_a_silent_agent_is_lost_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    membership, now = _running(), time.monotonic()
    for second in range(1, 5):
        monkeypatch.setattr(membership_module.time, "monotonic", lambda second=second: now + second)
        membership.note(b"job-0-a", Heartbeat())
        membership.check_agents()
    monkeypatch.setattr(membership_module.time, "monotonic", lambda: now + 6)
    with pytest.raises(WorkerLost, match="Worker 1 on alpha did not answer for"):
        membership.check_agents()


def test_a_kernel_that_was_suspended_takes_nobody_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    membership, now = _running(), time.monotonic()
    monkeypatch.setattr(membership_module.time, "monotonic", lambda: now + 3600)
    membership.check_agents()
    assert not membership.lost


def test_a_trainer_that_dies_while_it_loads_is_lost_at_once() -> None:
    membership = _running()
    membership.begin_generation()
    membership.note(b"job-1-a", TrainerExited(2, 1, 0, 9, "loading"))
    with pytest.raises(WorkerLost, match=r"Worker 1 on alpha was killed by signal 9 \(SIGKILL.*while it was starting"):
        membership.await_trainers(1)


def test_a_trainer_that_cannot_load_says_why_and_is_not_taken_for_lost() -> None:
    membership = _running()
    membership.begin_generation()
    membership.note(b"job-1-a", TrainerReady(2, 1, 7, error="ImportError: no tensorflow"))
    membership.note(b"job-1-a", TrainerExited(2, 1, 0, 0, ""))
    with pytest.raises(ClusterError, match="no tensorflow") as caught:
        membership.await_trainers(1)
    assert not isinstance(caught.value, WorkerLost)


@pytest.mark.parametrize(
    ("exited", "words"),
    [
        (TrainerExited(1, 0, 0, 9, ""), "was killed by signal 9 (SIGKILL, perhaps out of memory)"),
        (TrainerExited(1, 0, 0, 6, ""), "was killed by signal 6 (SIGABRT, perhaps for lack of memory)"),
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


def test_a_server_that_does_not_answer_is_told_of_before_all_else_that_is_waited_for() -> None:
    membership, told = Membership(2), list[str]()
    with heard_by(lambda what, until: told.append(what)):
        membership.await_first(0.1)
        membership.unanswered = lambda: "the Spark Connect server"
        membership.await_first(0.1)
        with pytest.raises(StartTimeout):
            membership.await_agents(0.1, "tcp://alpha:1")
    assert set(told[:1]) == {"a first agent"}
    assert set(told[1:]) == {"the Spark Connect server"}
    assert membership.heed() == membership.silence() == "the Spark Connect server"
    assert membership.status("connect").reason == "It waits for the Spark Connect server."


def test_silence_is_that_of_an_agent_or_of_the_process_that_it_looks_after() -> None:
    membership = _running(timeout=20)
    membership.note(b"job-1-a", Heartbeat(trainer_silence=1.9))
    assert membership.silence() == ""
    membership.note(b"job-1-a", Heartbeat(trainer_silence=4.2))
    assert membership.silence() == "the process of worker 1 on alpha, silent, and lost after 20 s of that"
    membership.workers[0].seen -= 5
    assert membership.silence() == "worker 0 on alpha, silent, and lost after 20 s of that"


def test_a_start_that_ends_with_the_session_is_no_fault_of_an_executor() -> None:
    for session, kind in ((False, ExecutorError), (True, ClusterError)):
        membership = Membership(2)
        membership.fail("it has ended", session=session)
        with pytest.raises(ClusterError, match="it has ended") as caught:
            membership.await_agents(5, "tcp://alpha:1")
        assert type(caught.value) is kind


def test_what_messages_wait_for_spark_counts_for_no_silence_of_a_part_either() -> None:
    whole = _running()
    part = SubsetMembership(whole, [1])
    whole.delay = lambda: 30.0  # as a relay says it, later than the part was made
    for worker in (*whole.members, *part.members):
        worker.seen = time.monotonic() - 30
    whole.check_agents()
    part.check_agents()


def test_an_elastic_cluster_that_loses_a_worker_in_a_map_keeps_the_numbers_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Session:
        sparkContext = SimpleNamespace(_jsc=object(), _gateway=None, master="local[4]")

    cluster: Any = TFCluster(Session(), workers=2, most_workers=3)
    members = cluster.membership
    cluster.size = members.size = 3
    members.gather({slot: f"job-{slot}" for slot in range(3)})
    for slot in range(3):
        endpoint = SimpleNamespace(uri=f"grpc://alpha:{slot + 1}", name=f"w{slot}")
        register: Any = Register(slot, "alpha", 100 + slot, 4000 + slot, endpoint, f"job-{slot}")  # type: ignore[arg-type]
        members.note(b"job-%d-a" % slot, register)
    members.await_agents(1, "tcp://alpha:1")
    members.begin_generation()
    cluster._control = SimpleNamespace(send=lambda *_: None, forget=lambda *_: None)
    cluster._open_feeds()

    def no_slot(*_: Any) -> None:
        raise StartTimeout("no free slot")

    for name, stands_for in {"clear": lambda _: None, "await_room": lambda *_: False, "relaunch": no_slot}.items():
        monkeypatch.setattr(cluster._agents, name, stands_for)
    parts = [WorkerSubset(cluster, range(rank, rank + 1)) for rank in range(3)]
    for worker in members.members:
        worker.seen = time.monotonic() + 100
    members.note(b"job-1-a", AgentEnded("its host went away"))
    monkeypatch.setattr(members, "missing", lambda: [1])
    with pytest.raises(StartTimeout, match="no free slot"):
        parts[1].revive()
    for rank in (0, 2):
        parts[rank].membership.check_agents()
        assert parts[rank].membership.members[0].peer == b"job-%d-a" % rank


def test_workers_of_a_cluster_that_has_ended_are_not_ready() -> None:
    membership = _running()
    assert [worker.state for worker in membership.status("local").workers] == ["ready"] * 2
    membership.end("no run came for 12 s (idle_timeout)")
    assert [(worker.state, worker.memory) for worker in membership.status("local").workers] == [("ended", 0)] * 2
