"""What a crash may have left on this machine: our processes that outlived what they were to end with."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import psutil

from tfos_magic.processes.child_process import PARENT_VARIABLE
from tfos_magic.processes.fork_client import SERVER_MODULE, SERVER_NAME, TRAINER_NAME

_TENSORBOARD = "tfos_magic.tensorboard.main"
END_SECONDS = 5.0


@dataclass(frozen=True)
class Orphan:
    """A process of this user that outlived what started it. ``memory`` in bytes, ``started`` in seconds since 1970."""

    pid: int
    kind: str
    memory: int
    started: float


def find_orphans() -> list[Orphan]:
    """Trainers and what they forked whose fork server, and TensorBoards whose kernel, is none of their ancestors.

    Other users' are not looked at.
    """
    orphans = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            kind = _kind(process)
            if kind and process.uids().real == os.getuid() and _is_orphan(process):
                orphans.append(Orphan(process.pid, kind, process.memory_info().rss, process.create_time()))
    return orphans


def end_orphans(orphans: list[Orphan]) -> int:
    """Kill them; gives how many are gone. A process that took over a number since is left alone."""
    ended = []
    for orphan in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(orphan.pid)
            if process.create_time() == orphan.started:
                process.kill()
                ended.append(process)
    gone, _ = psutil.wait_procs(ended, timeout=END_SECONDS)
    return len(gone)


def _kind(process: psutil.Process) -> str:
    command = process.cmdline()
    if _TENSORBOARD in command:
        return "TensorBoard"
    return "trainer" if SERVER_MODULE in command and process.name() == TRAINER_NAME else ""


def _is_orphan(process: psutil.Process) -> bool:
    """Whether none of its ancestors is what a process of its kind ends with.

    Parents do not tell: what a trainer forks, such as the processes of a pool, has its command, name and environment.
    """
    ancestors = [*process.parents(), *_of_its_session(process)]
    if process.name() == TRAINER_NAME:
        return not any(map(_is_fork_server, ancestors))
    expected = process.environ().get(PARENT_VARIABLE)
    return expected is not None and expected not in {str(ancestor.pid) for ancestor in ancestors}


def _of_its_session(process: psutil.Process) -> list[psutil.Process]:
    """The leader of its session, where that lives, and its ancestors.

    Each trainer leads a session: what belongs to it is known also where what has forked it in between has ended.
    """
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        leader = psutil.Process(os.getsid(process.pid))
        return [] if leader.status() == psutil.STATUS_ZOMBIE else [leader, *leader.parents()]
    return []


def _is_fork_server(process: psutil.Process) -> bool:
    return process.name() == SERVER_NAME and SERVER_MODULE in process.cmdline()
