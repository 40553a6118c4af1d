"""Three hosts with links that are cut, processes that are killed, and a cluster that changes size meanwhile.

They are network namespaces, which ``benchmarks/hosts.py`` makes; it needs root on Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXACT = 1e-5


@pytest.fixture(scope="module")
def events(project: Path) -> dict[str, Any]:
    """What came of each thing that was done, by what it was."""
    if os.geteuid() != 0 or not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("network namespaces cannot be made here: no hosts are cut off")
    command = [sys.executable, str(project / "benchmarks" / "hosts.py"), "--json"]
    env = {**os.environ, "PYTHONPATH": str(project)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1100)
    assert done.returncode == 0, done.stderr[-5000:]
    return {event["done"]: event for event in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_what_befalls_hosts_costs_a_run_time_and_not_its_weights(events: dict[str, Any]) -> None:
    *others, last = events.values()
    assert len(others) == 9
    assert [event["done"] for event in others if event["error"]] == []
    assert max(event["furthest"] for event in others[1:]) <= EXACT
    told = {name: " ".join(event["told"]) for name, event in events.items()}
    assert "restarted" not in told["a host cut off for 3 s"] + told["a host cut off for 10 s"]
    assert "was killed by signal 9" in told["a trainer killed"]
    for name in ("an agent killed", "an executor killed", "a host gone"):
        assert "(1 of 2 restarts)" in told[name], told[name]
    assert "did not answer for" in told["a host gone"]
    assert "3 workers from here on." in told["scaled to 3 workers"]
    assert "2 workers from here on." in told["scaled to 2 workers"]
    assert last["done"] == "the other host gone as well"
    assert "could not replace what it lost" in last["error"]
    assert "--resume" in last["error"]
