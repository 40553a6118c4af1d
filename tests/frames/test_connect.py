"""A Connect session, whose executors get this package shipped, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_connect_session_maps_reduces_and_aggregates(tmp_path: Path) -> None:
    program = Path(__file__).with_name("connect_program.py")
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["map"] == [float(i) for i in range(3, 13)]
    assert said["large"] == [float(i) for i in range(7, 17)]
    assert said["reduce"] == 45
    assert said["aggregate"] == [[0.0, 20.0], [1.0, 25.0]]
    assert said["shapes"].splitlines()[1:] == [" |-- v: float64[?,2]", " |-- w: float64[?,2]"]
    assert "without rollup" in said["rollup"]
    assert said["nulls"].startswith("column 'x' has nulls")
