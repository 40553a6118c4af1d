"""What an attempt hears: the workers of its run, each in its own name. A group that sends nothing stands for theirs."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

import pytest

from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.runs import attempt as attempt_module
from tfos_magic.cluster.runs.attempt import Attempt, Inbox
from tfos_magic.cluster.runs.worker_state import WorkerState
from tfos_magic.cluster.trainer_group import TrainerGroup
from tfos_magic.errors import WorkerError, WorkerLost
from tfos_magic.transport.messages import (
    CheckpointPart,
    EpochEnd,
    Heartbeat,
    Message,
    Output,
    Progress,
    Register,
    RunCell,
    RunFinished,
    TrainerExited,
)

pytestmark = pytest.mark.slow

RUN = "of now"


class Group(TrainerGroup):
    """Two workers that somebody else speaks for."""

    def __init__(self) -> None:
        super().__init__(2, Membership(2), 1.0)
        self.membership.generation = 3

    def tell(self, rank: int, message: Message) -> None:
        """Nobody is there."""

    def settle(self) -> None:
        """There is no session."""

    def revive(self) -> None:
        """Nobody is lost."""

    def private_files(self) -> str:
        return ""

    def say(self, rank: int, message: Message) -> None:
        assert self._listener is not None
        self._listener(rank, message)


@pytest.fixture
def heard() -> list[Message]:
    return []


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def attempt(group: Group, heard: list[Message]) -> Attempt:
    take: Callable[[Any], None] = heard.append
    return Attempt(group, RUN, take)


def test_what_a_worker_says_in_the_name_of_another_is_dropped_and_told_of_once(
    group: Group, attempt: Attempt, heard: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    own = [Output(RUN, 0, "stdout", "own"), RunFinished(RUN, 1, "ok"), RunFinished(RUN, 0, "ok")]
    for rank, message in [
        (1, RunFinished(RUN, 0, "error", {"kind": "Forged"})),
        (1, TrainerExited(3, 0, 1, 0, "")),
        (1, CheckpointPart(RUN, 0, "a", 0, 1)),
        (1, Output(RUN, 9, "stdout", "forged")),
        (0, own[0]),
        (1, own[1]),
        (0, own[2]),
    ]:
        group.say(rank, message)
    attempt.follow([])
    assert [message for message in heard if message is not None] == own
    assert [record.getMessage() for record in caplog.records] == [
        "dropped a RunFinished that worker 1 sent as another; further ones are not logged"
    ]


def test_what_comes_late_from_a_run_before_is_neither_heard_nor_taken_for_a_forgery(
    group: Group, attempt: Attempt, heard: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    for message in (Output("of then", 1, "stdout", "late"), TrainerExited(2, 1, 1, 0, ""), Output("", 1, "stdout", "")):
        group.say(0, message)
    group.say(0, Heartbeat())
    for rank in (0, 1):
        group.say(rank, RunFinished(RUN, rank, "ok"))
    with caplog.at_level(logging.WARNING):
        attempt.follow([])
    assert [type(message) for message in heard if message is not None] == [Heartbeat, RunFinished, RunFinished]
    assert not caplog.records


def test_an_error_is_that_of_the_worker_that_sends_it(group: Group, attempt: Attempt) -> None:
    group.say(0, RunFinished(RUN, 0, "ok"))
    group.say(1, RunFinished(RUN, 1, "error", {"kind": "ValueError", "message": "no"}))
    with pytest.raises(WorkerError) as caught:
        attempt.follow([WorkerState(0), WorkerState(1)])
    assert caught.value.rank == 1


def test_a_worker_that_says_nothing_is_waited_for_until_it_is_lost_or_heard_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"CAUSE_GRACE": 0.1, "ERROR_GRACE": 0.2, "QUIET_SECONDS": 0.3}.items():
        monkeypatch.setattr(attempt_module, name, seconds)

    def followed(heard_again: bool) -> str:
        membership = group.membership = Membership(2, 30.0 if heard_again else 2.0)
        membership.gather({0: "job-0", 1: "job-1"})
        for slot in (0, 1):
            membership.note(b"job-%d-a" % slot, Register(slot, "alpha", 1, 1, "grpc://alpha:1", f"job-{slot}"))
        membership.await_agents(1, "tcp://alpha:1")
        end = time.monotonic() + 1.0

        def take(message: Message | None) -> None:
            membership.note(b"job-1-a", Heartbeat())
            if heard_again and time.monotonic() > end:
                membership.note(b"job-0-a", Heartbeat())

        attempt = Attempt(group, RUN, take)
        group.say(1, RunFinished(RUN, 1, "error", {"kind": "ClusterError", "message": "the process of rank 0 ended"}))
        with pytest.raises(WorkerLost) as caught:
            attempt.follow([WorkerState(0, "alpha"), WorkerState(1, "alpha")])
        return str(caught.value)

    assert re.search(r"Worker 0 on alpha did not answer for \d+ s", followed(heard_again=False))
    assert "Worker 0 on alpha did not end the cell when the others did" in followed(heard_again=True)


def _progress(rank: int, step: int) -> Progress:
    return Progress(RUN, rank, "train", 0, 1, step, 10, 32 * step)


def test_progress_that_nobody_has_looked_at_gives_way_to_later_and_overtakes_nothing() -> None:
    inbox, end = Inbox(), EpochEnd(RUN, 0, 0, 1)
    for message in (_progress(0, 1), _progress(1, 1), _progress(0, 2), end, _progress(0, 3), _progress(1, 2)):
        inbox.put(message.rank, message)
    heard = [inbox.get(1) for _ in range(4)]
    assert heard == [_progress(0, 2), _progress(1, 2), end, _progress(0, 3)]
    inbox.put(0, _progress(0, 4))
    assert inbox.get(1) == _progress(0, 4)
    with pytest.raises(Empty):
        inbox.get(0.01)


@pytest.mark.parametrize("told", [0, 1])
def test_an_interrupt_while_the_cell_is_sent_waits_for_nobody(
    group: Group, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    spawned: list[bool] = []
    heard: list[int] = []

    def tell(rank: int, message: Message) -> None:
        heard.append(rank)
        if len(heard) == told + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(group, "tell", tell)
    monkeypatch.setattr(group, "spawn_trainers", lambda: spawned.append(True))
    with pytest.raises(KeyboardInterrupt):
        attempt.send(RunCell(RUN, "", "<cell>", "sync", 0, []))
    began = time.monotonic()
    attempt.stop(lambda text: None, lambda: None)
    assert time.monotonic() - began < 1
    assert spawned == [True], "one of them may wait for the others"
