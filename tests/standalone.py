"""A standalone Spark master and two workers on two loopback addresses, as a fixture."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """The URL of the master; its workers have two cores and 2 GB each."""
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    env = {**os.environ, "SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_DAEMON_MEMORY": "256m"}
    started = [
        _daemon([launcher, "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1", "-p", str(port)], env, tmp_path)
    ]
    try:
        _await_line(tmp_path / "0.log", "Starting Spark master")
        for number, host in enumerate(("127.0.0.2", "127.0.0.3"), 1):
            command = [launcher, "org.apache.spark.deploy.worker.Worker", "-h", host, "-c", "2", "-m", "2g", url]
            started.append(_daemon(command, {**env, "SPARK_LOCAL_IP": host}, tmp_path, number))
            _await_line(tmp_path / f"{number}.log", "Successfully registered")
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(20)


def _daemon(command: list[str], env: dict[str, str], folder: Path, number: int = 0) -> subprocess.Popen[bytes]:
    with (folder / f"{number}.log").open("wb") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=folder)


def _await_line(log: Path, text: str, timeout: float = 40) -> None:
    deadline = time.monotonic() + timeout
    while text not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, f"{text!r} was not logged within {timeout} s:\n{log.read_text()[-2000:]}"
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
