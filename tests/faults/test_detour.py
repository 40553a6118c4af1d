"""A kernel that executors cannot reach, and a relay that is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STOP_SECONDS = 3.0


def _program(project: Path, *command: str, timeout: int = 420) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(project)}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=timeout)
    assert done.returncode == 0, done.stderr[-5000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["connect", "classic"])
def test_a_kernel_that_executors_cannot_reach_trains_as_one_that_they_can(project: Path, kind: str) -> None:
    """By itself, and with a DataFrame, an interrupt and a stop; seconds are for people to read."""
    if os.geteuid() != 0 or not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("network namespaces cannot be made here: no packets are dropped")
    found = _program(project, str(project / "benchmarks" / "detour.py"), kind, "--json")
    assert "error" not in found, found
    assert "Executors do not reach this kernel" in " ".join(found["told"])
    assert found["state"] == "stopped"
    assert found["after"] == 9
    reached = _program(project, str(project / "benchmarks" / "detour.py"), kind, "--open", "--json")
    assert reached["told"] == []
    assert found["digest"] == pytest.approx(reached["digest"], abs=1e-5)
    print(json.dumps({"relay": found, "direct": reached}))


@pytest.mark.soak
@pytest.mark.timeout(450)
def test_a_relay_that_is_lost_costs_a_restart_and_messages_that_wait_for_spark_cost_nothing(project: Path) -> None:
    found = _program(project, str(Path(__file__).with_name("detour_program.py")))
    assert found["crowded"] == {"restarts": 0, "waited": True}
    assert found["furthest"] < 1e-5
    assert found["restarts"] == 1
    assert "was lost with the relay of its messages" in found["told"]
    assert "restarted" in found["told"]
    assert found["refused"].startswith("2 workers, 1 feed slot and 1 for messages asked, 3 of 4 slots free")
