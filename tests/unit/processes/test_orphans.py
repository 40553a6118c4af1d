"""Processes that look like ours by their command line: a sleeping Python stands in for a trainer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tfos_magic.processes.orphans import end_orphans, find_orphans

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", "tfos_magic.worker.trainer"]


@pytest.fixture
def stand_in() -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []

    def start(parent: int) -> subprocess.Popen[bytes]:
        env = {**os.environ, "TFOS_PARENT_PID": str(parent)}
        made.append(subprocess.Popen(SLEEP, env=env, stdout=subprocess.PIPE))
        assert made[-1].stdout is not None
        made[-1].stdout.readline()
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def test_a_trainer_whose_agent_is_gone_is_found_and_ended(stand_in: Callable[[int], subprocess.Popen[bytes]]) -> None:
    gone, alive = stand_in(2**22 + 1), stand_in(os.getpid())
    found = [orphan for orphan in find_orphans() if orphan.pid in (gone.pid, alive.pid)]
    assert [(orphan.pid, orphan.kind) for orphan in found] == [(gone.pid, "trainer")]
    assert end_orphans(found) == 1
    assert gone.poll() is not None
    assert alive.poll() is None


def test_a_number_that_another_process_took_over_is_left_alone(
    stand_in: Callable[[int], subprocess.Popen[bytes]],
) -> None:
    process = stand_in(2**22 + 1)
    (orphan,) = [orphan for orphan in find_orphans() if orphan.pid == process.pid]
    assert end_orphans([replace(orphan, started=orphan.started - 5)]) == 0
    assert process.poll() is None
