"""What a crash may have left on this machine: our processes whose parent is gone."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import psutil

from tfos_magic.processes.child_process import PARENT_VARIABLE

_OURS = {"tfos_magic.worker.trainer": "trainer", "tfos_magic.tensorboard.main": "TensorBoard"}
END_SECONDS = 5.0


@dataclass(frozen=True)
class Orphan:
    """A process of this user that outlived what started it. ``memory`` in bytes, ``started`` in seconds since 1970."""

    pid: int
    kind: str
    memory: int
    started: float


def find_orphans() -> list[Orphan]:
    """Trainers whose agent, and TensorBoards whose kernel, has ended. Other users' processes are not looked at."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            kind = _kind(process)
            if kind and process.uids().real == os.getuid() and _lost_its_parent(process):
                found.append(Orphan(process.pid, kind, process.memory_info().rss, process.create_time()))
    return found


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
    return next((kind for module, kind in _OURS.items() if module in command), "")


def _lost_its_parent(process: psutil.Process) -> bool:
    parent = process.environ().get(PARENT_VARIABLE)
    return parent is not None and parent != str(process.ppid())
