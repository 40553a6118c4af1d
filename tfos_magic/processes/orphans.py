"""What a crash may have left on this machine: our processes whose parent is gone."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import psutil

from tfos_magic.processes.child_process import PARENT_VARIABLE
from tfos_magic.processes.fork_client import SERVER_MODULE, TRAINER_NAME

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
    """Trainers whose fork server, and TensorBoards whose kernel, has ended; other users' are not looked at."""
    orphans = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            kind = _kind(process)
            if kind and process.uids().real == os.getuid() and _lost_its_parent(process):
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


def _lost_its_parent(process: psutil.Process) -> bool:
    """Those that were forked have the command and the environment of what they were forked of."""
    parent = process.parent()
    if process.name() == TRAINER_NAME:
        return parent is None or SERVER_MODULE not in parent.cmdline()
    expected = process.environ().get(PARENT_VARIABLE)
    return expected is not None and expected != str(process.ppid())
