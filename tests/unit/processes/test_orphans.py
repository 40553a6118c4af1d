"""Processes that look like ours by their names: a sleeping Python stands in for a trainer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tfos_magic.processes.orphans import end_orphans, find_orphans

SLEEP = "name_process('tfos-trainer'); print(os.getpid(), flush=True); time.sleep(60)"
LOST = f"import os, time; from tfos_magic.processes.child_process import name_process; {SLEEP}"
FORKED = LOST.replace("name_process(", "os.fork() and os.wait(); name_process(", 1)


@pytest.fixture
def stand_in() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, "tfos_magic.worker.fork_server"]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        return made[-1]

    yield start
    for process in made:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _pid(process: subprocess.Popen[str]) -> int:
    """What it says, once it has its name."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_trainer_whose_fork_server_is_gone_is_found_and_ended(
    stand_in: Callable[[str], subprocess.Popen[str]],
) -> None:
    gone, server = stand_in(LOST), stand_in(FORKED)
    pids = [_pid(gone), _pid(server)]
    found = [orphan for orphan in find_orphans() if orphan.pid in pids]
    assert [(orphan.pid, orphan.kind) for orphan in found] == [(gone.pid, "trainer")]
    assert end_orphans(found) == 1
    assert gone.poll() is not None
    assert server.poll() is None


def test_a_number_that_another_process_took_over_is_left_alone(
    stand_in: Callable[[str], subprocess.Popen[str]],
) -> None:
    process = stand_in(LOST)
    assert _pid(process) == process.pid
    (orphan,) = [orphan for orphan in find_orphans() if orphan.pid == process.pid]
    assert end_orphans([replace(orphan, started=orphan.started - 5)]) == 0
    assert process.poll() is None
