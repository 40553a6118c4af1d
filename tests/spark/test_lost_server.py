"""A Connect server that dies takes the run with it in half a minute, with one error, and nothing hangs behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("lost_server_program.py")
TIMEOUT, AT_ONCE, LIMIT, EXIT = 280, 5.0, 40.0, 10.0
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("lost-server")
    env = {**os.environ, "SPARK_LOCAL_DIRS": str(folder)}
    command = [sys.executable, str(PROGRAM), str(folder / "checkpoints")]
    done = subprocess.run(command, capture_output=True, env=env, cwd=folder, timeout=TIMEOUT)
    ended = time.time()
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    said = json.loads(done.stdout.decode().splitlines()[-1])
    return {**said, "exit": ended - said["ended"]}


@pytest.mark.soak
def test_a_server_that_pauses_ends_no_run(outcome: dict[str, Any]) -> None:
    assert outcome["paused"] == {"done": False, "goes on": True, "restarts": 0}


@pytest.mark.soak
def test_a_server_that_dies_ends_the_run_with_one_error_that_names_it_and_what_to_do(outcome: dict[str, Any]) -> None:
    lost = outcome["lost"]
    assert lost["kind"] == "ClusterError"
    assert "The Spark Connect server at localhost:" in lost["text"]
    assert "has not answered for" in lost["text"]
    assert "make a new session" in lost["text"]
    assert "--resume" in lost["text"]
    assert lost["seconds"] < LIMIT
    assert any("Spark Connect server" in what and "does not answer" in what for what in outcome["said"])


@pytest.mark.soak
def test_what_is_asked_after_the_loss_is_answered_at_once(outcome: dict[str, Any]) -> None:
    assert "The Spark Connect server" in outcome["status"]["text"]
    assert outcome["stop"]["kind"] == ""
    assert outcome["next"]["kind"] == "ClusterError"
    for asked in ("status", "stop", "next"):
        assert outcome[asked]["seconds"] < AT_ONCE, asked
    assert outcome["exit"] < EXIT
