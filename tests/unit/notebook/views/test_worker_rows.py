"""The workers in words: who is in trouble, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfos_magic.cluster.runs.state import RunPhase, RunState, lose
from tfos_magic.cluster.runs.worker_state import WorkerState
from tfos_magic.notebook.describe import status_dict
from tfos_magic.notebook.views.card import render_card
from tfos_magic.notebook.views.picture import take_picture
from tfos_magic.notebook.views.worker_rows import worker_rows
from tfos_magic.transport.messages import RunStarted

from .simulated import RUN, finish, new_state, pass_time, progress, tell


def training(world: int = 4) -> RunState:
    state = new_state(world)
    state.phase = RunPhase.RUNNING
    return state


def troubles(state: RunState) -> list[str]:
    return [worker.trouble for worker in worker_rows(state)]


def test_workers_of_one_pace_are_in_no_trouble() -> None:
    state = training()
    for step in (1, 2, 3):
        pass_time(state, 1)
        tell(state, *(progress(rank, 0, step) for rank in range(4)))
    assert troubles(state) == ["", "", "", ""]


def test_a_pace_far_below_the_median_is_slow() -> None:
    state = training()
    for second in (1, 2, 3):
        pass_time(state, 1)
        tell(state, *(replace(progress(rank, 0, 3), rows=second * (100 if rank else 40)) for rank in range(4)))
    assert troubles(state) == ["slow", "", "", ""]


def test_in_lockstep_the_slow_one_is_who_the_others_wait_for() -> None:
    state = training()
    for second in (1, 2, 3):
        pass_time(state, 1)
        waits = [0.4, 0.4, 0.02, 0.4]
        tell(state, *(replace(progress(r, 0, second), peer_seconds=waits[r] * second) for r in range(4)))
    assert troubles(state) == ["", "", "slow: others wait", ""]
    assert [worker.peers for worker in worker_rows(state)] == ["40%", "40%", "2%", "40%"]


def test_a_worker_steps_behind_the_others_is_behind() -> None:
    state = training()
    for second in (1, 2):
        pass_time(state, 1)
        tell(state, *(replace(progress(r, 0, second + 7 * (r > 0)), rows=100 * second) for r in range(4)))
    assert troubles(state) == ["", "", "", ""]  # in lockstep it is there in the same step: its news are older
    state.strategy = "local"
    assert troubles(state) == ["behind", "", "", ""]


def test_a_worker_that_says_nothing_while_others_do_is_silent() -> None:
    state = training()
    tell(state, *(progress(rank, 0, 1) for rank in range(4)))
    pass_time(state, 7)
    tell(state, *(progress(rank, 0, 2) for rank in range(3)))
    assert troubles(state) == ["", "", "", "silent"]


def test_a_worker_that_never_ended_a_failed_run_is_lost_on_the_card_too() -> None:
    state = training(40)
    tell(state, *(progress(rank, 0, 1) for rank in range(40)))
    finish(state, "error")
    state.workers[33].state = "training"
    rows = worker_rows(state)
    assert (rows[33].state, rows[33].trouble) == ("lost", "lost")
    assert "worker 33" in render_card(state)


def test_waits_are_part_of_the_phases_once_they_are_measured() -> None:
    state = training(2)
    tell(state, progress(0, 0, 1))
    pass_time(state, 10)
    tell(state, *(progress(rank, 0, 2) for rank in range(2)))
    assert [phase.name for phase in take_picture(state).phases] == ["train"]
    waits = {"data_seconds": 1.0, "peer_seconds": 2.0, "exchange_seconds": 0.5}
    tell(state, *(replace(progress(r, 0, 3), **waits) for r in range(2)))
    phases = {phase.name: phase.text for phase in take_picture(state).phases}
    assert phases == {"compute": "6.5 s", "wait for data": "1.0 s", "exchange": "0.5 s", "wait for others": "2.0 s"}


@pytest.mark.parametrize(
    ("waits", "name"),
    [
        ([4.0, 4.0, 0.2, 4.0], "wait for worker 2"),
        ([4.0, 0.2], "wait for worker 1"),
        ([3.0, 3.0, 2.0, 4.0], "wait for others"),
        ([0.4, 0.4, 0.0, 0.4], "wait for others"),  # too little of ten seconds to speak of
    ],
)
def test_a_worker_that_the_others_have_waited_for_all_along_is_named(waits: list[float], name: str) -> None:
    state = training(len(waits))
    tell(state, progress(0, 0, 1))
    pass_time(state, 10)
    tell(state, *(replace(progress(r, 0, 2), peer_seconds=wait) for r, wait in enumerate(waits)))
    finish(state)
    assert [phase.name for phase in take_picture(state).phases] == ["compute", name]
    named = int(name[-1]) if "worker" in name else None
    assert status_dict(None, [], state)["run"]["straggler"] == named
    state.strategy = "async"  # where they wait for servers
    assert take_picture(state).phases[-1].name == "wait for others"


def test_the_time_that_remains_is_judged_from_the_first_step_on() -> None:
    state = training(1)
    pass_time(state, 100)  # compiling, say
    tell(state, progress(0, 0, 1))
    assert take_picture(state).remaining == ""
    pass_time(state, 5)
    tell(state, progress(0, 0, 6))
    assert take_picture(state).remaining == "24 s left"


def test_parameter_servers_have_rows_of_their_own_after_the_workers_where_the_run_uses_them() -> None:
    state = training(2)
    state.servers = [WorkerState(2, "beta", 77, state="serving", memory=5_000_000)]
    assert len(worker_rows(state)) == 2
    state.strategy = "async"
    assert [worker.rank for worker in worker_rows(state)] == [0, 1, 2]
    server = worker_rows(state)[2]
    assert (server.where, server.state, server.trouble) == ("parameter server · beta · pid 77", "serving", "")
    lose(state, 2)
    assert worker_rows(state)[2].trouble == "lost"


def test_a_worker_that_was_lost_is_so_until_its_replacement_begins() -> None:
    state = training(3)
    tell(state, *(progress(rank, 0, 1) for rank in range(3)))
    lose(state, 1)
    assert troubles(state) == ["", "lost", ""]
    tell(state, RunStarted(RUN, 1))
    assert troubles(state) == ["", "", ""]


def test_checkpoints_have_a_part_of_the_time() -> None:
    state = training(1)
    tell(state, progress(0, 0, 1))
    pass_time(state, 6)
    tell(state, progress(0, 0, 10, phase="checkpoint"))
    assert worker_rows(state)[0].state == "saving"
    pass_time(state, 2)
    tell(state, progress(0, 0, 10))
    assert {phase.name: phase.text for phase in take_picture(state).phases} == {"train": "6.0 s", "checkpoint": "2.0 s"}
