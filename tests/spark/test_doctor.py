"""The doctor on a real session: what is well, and each thing that is not, with its remedy."""

from __future__ import annotations

import platform
import socket
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tfos_magic.cluster import preflight
from tfos_magic.cluster.preflight import Finding, examine
from tfos_magic.cluster.workers import ClusterSpec


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_a_session_that_can_hold_a_cluster_is_well(local_session: SparkSession) -> None:
    found = by_name(list(examine(local_session, ClusterSpec(workers=2))))
    assert not [finding for finding in found.values() if finding.fix]
    assert f"Python {platform.python_version()}" in found["executor slot 1"].text
    assert "tensorflow" in found["executor slot 0"].text
    assert found["executor slot 0 ports"].text == "kernel and peers answer"
    assert "GB free in" in found["executor slot 0 spool"].text


def test_too_few_slots_are_said_and_no_job_is_started(local_session: SparkSession) -> None:
    found = by_name(list(examine(local_session, ClusterSpec(workers=4))))
    assert "4 workers and feeding need 5" in found["slots"].text
    assert "more cores" in found["slots"].fix
    assert not [name for name in found if name.startswith("executor")]


def test_a_control_port_that_is_taken_is_said(local_session: SparkSession) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = ClusterSpec(workers=1, control_port=taken.getsockname()[1])
        found = by_name(list(examine(local_session, wanted)))
    assert "TFOS.control_port" in found["control port"].fix


def test_a_spool_directory_that_executors_lack_is_said(local_session: SparkSession) -> None:
    found = by_name(list(examine(local_session, ClusterSpec(workers=1, spool_dir="/nowhere/at/all"))))
    assert "No such file or directory in /nowhere/at/all" in found["executor slot 0 spool"].text
    assert "TFOS.spool_dir" in found["executor slot 0 spool"].fix


def test_executors_without_the_package_python_needs_are_said(local_session: SparkSession) -> None:
    def broken(batches: object) -> object:
        raise ModuleNotFoundError("No module named 'pyarrow'")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight, "Probe", lambda *arguments: broken)
        found = by_name(list(examine(local_session, ClusterSpec(workers=1))))
    assert "No module named 'pyarrow'" in found["executors"].text
    assert found["executors"].fix


def test_a_running_cluster_is_not_probed(local_session: SparkSession) -> None:
    found = by_name(list(examine(local_session, ClusterSpec(workers=9), running=True)))
    assert "%tfos status" in found["cluster"].text
    assert "slots" not in found


def test_slots_of_tasks_that_have_just_begun_are_held(local_session: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def stay(number: int) -> int:
        Path(folder, str(number)).touch()
        while not Path(folder, "end").exists():
            time.sleep(0.05)
        return number

    def held() -> str:
        return by_name(list(examine(local_session, ClusterSpec(workers=4))))["slots"].text

    job = threading.Thread(target=lambda: local_session.sparkContext.parallelize([0, 1], 2).map(stay).collect())
    job.start()
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert held().startswith("2 of 4 free")
    finally:
        Path(folder, "end").touch()
        job.join()
    assert held().startswith("4 of 4 free")
