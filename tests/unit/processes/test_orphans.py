"""Processes that look like ours by their names: sleeping Pythons, really forked, stand in for servers and trainers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import psutil
import pytest

from tfos_magic.processes.orphans import end_orphans, find_orphans

NAMED = (
    "import multiprocessing, os, psutil, signal, time; from tfos_magic.processes.child_process import name_process\n"
)
SAY = "print(os.getpid(), flush=True)\n"
LOST = NAMED + f"name_process('tfos-trainer'); {SAY}time.sleep(60)"
# A server, its trainer, and what a cell has: a process of a pool, and one that has left its parent as daemons do.
FAMILY = f"""{NAMED}
name_process('tfos-forkserver'); {SAY}
if os.fork():
    signal.pause()
os.setsid(); name_process('tfos-trainer'); {SAY}
pool = multiprocessing.get_context("fork").Pool(1)
pool.apply(exec, ("import os; " + {SAY!r},))
if not os.fork():
    if os.fork():
        os._exit(0)
    while psutil.Process(os.getppid()).name() == 'tfos-trainer':
        time.sleep(0.01)
    {SAY}
signal.pause()
"""
BOARD = f"{SAY}import time; os.fork() and os.wait(); {SAY}time.sleep(60)"
StandIn = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    made: list[subprocess.Popen[str]] = []
    mark = {"TFOS_STAND_IN": uuid4().hex}

    def start(code: str, module: str = "tfos_magic.worker.fork_server", **environment: str) -> subprocess.Popen[str]:
        command, env = [sys.executable, "-c", code, module], {**os.environ, **environment, **mark}
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env))
        return made[-1]

    yield start
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if mark.items() <= process.environ().items():
                process.kill()
    for each in made:
        each.communicate()


def _pids(process: subprocess.Popen[str], count: int = 1) -> list[int]:
    """What it and its children say, once they have their names."""
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(count)]


def _found(pids: list[int]) -> set[int]:
    return {orphan.pid for orphan in find_orphans()}.intersection(pids)


def _kill(pid: int) -> None:
    """Kill a process, and wait until its children have another parent."""
    children = psutil.Process(pid).children()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(child.is_running() and child.ppid() == pid for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_trainer_whose_fork_server_is_gone_is_found_and_ended(stand_in: StandIn) -> None:
    gone, family = stand_in(LOST), stand_in(FAMILY)
    pids = [*_pids(gone), *_pids(family, 4)]
    found = [orphan for orphan in find_orphans() if orphan.pid in pids]
    assert [(orphan.pid, orphan.kind) for orphan in found] == [(gone.pid, "trainer")]
    assert end_orphans(found) == 1
    assert gone.poll() is not None
    assert family.poll() is None


def test_what_a_living_trainer_forks_is_no_orphan(stand_in: StandIn) -> None:
    server, trainer, pooled, daemon = _pids(stand_in(FAMILY), 4)
    assert psutil.Process(pooled).ppid() == trainer
    assert trainer not in {each.pid for each in psutil.Process(daemon).parents()}
    assert {psutil.Process(pid).name() for pid in (trainer, pooled, daemon)} == {"tfos-trainer"}
    assert not _found([server, trainer, pooled, daemon])


def test_what_a_dead_trainer_forked_is_an_orphan_though_the_server_lives(stand_in: StandIn) -> None:
    server, trainer, pooled, daemon = _pids(stand_in(FAMILY), 4)
    _kill(trainer)
    assert _found([server, trainer, pooled, daemon]) == {pooled, daemon}


def test_all_that_a_dead_server_left_are_orphans(stand_in: StandIn) -> None:
    server, *left = _pids(stand_in(FAMILY), 4)
    _kill(server)
    assert _found([server, *left]) == set(left)


def test_a_tensorboard_is_an_orphan_where_its_kernel_is_no_ancestor(stand_in: StandIn) -> None:
    code = "import os; " + BOARD
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    kept = _pids(stand_in(code, "tfos_magic.tensorboard.main", TFOS_PARENT_PID=str(os.getpid())), 2)
    left = _pids(stand_in(code, "tfos_magic.tensorboard.main", TFOS_PARENT_PID=str(gone.pid)), 2)
    assert _found([*kept, *left]) == set(left)


def test_a_number_that_another_process_took_over_is_left_alone(stand_in: StandIn) -> None:
    process = stand_in(LOST)
    assert _pids(process) == [process.pid]
    (orphan,) = [orphan for orphan in find_orphans() if orphan.pid == process.pid]
    assert end_orphans([replace(orphan, started=orphan.started - 5)]) == 0
    assert process.poll() is None
