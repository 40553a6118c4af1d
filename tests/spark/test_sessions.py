"""The same program on every kind of Spark session."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.jvm import EXECUTORS
from tests.standalone import standalone as standalone

PROGRAM = Path(__file__).with_name("session_program.py")
TIMEOUT = 170
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "600m",
} | EXECUTORS


def _run(options: dict[str, Any], folder: Path, python: str = sys.executable) -> dict[str, Any]:
    """Run the program in ``folder`` with executors that use ``python``."""
    env = {**os.environ, "PYSPARK_PYTHON": python, "SPARK_LOCAL_DIRS": str(folder), "SPARK_WORKER_DIR": str(folder)}
    options = {**options, "conf": {**QUIET, **options.get("conf", {})}}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(options)], capture_output=True, env=env, cwd=folder, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return dict(json.loads(done.stdout.decode().splitlines()[-1]))


def _assert_trained(outcome: dict[str, Any]) -> None:
    assert "error" not in outcome, outcome
    assert outcome["losses"] == 2
    assert outcome["count"] == 9
    digests = {said.split()[1] for said in outcome["said"].values()}
    assert len(outcome["said"]) == 2
    assert len(digests) == 1, "the weights differ between ranks"


@pytest.mark.soak
def test_executors_without_the_package_get_it_shipped_and_each_trainer_sees_only_the_gpu_spark_gave_it(
    tmp_path: Path,
) -> None:
    script = tmp_path / "gpus.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["3", "5", "7"]}\'\n')
    script.chmod(0o755)
    amounts = {f"spark.{who}.resource.gpu.amount": "3" for who in ("worker", "executor")}
    scripts = {f"spark.{who}.resource.gpu.discoveryScript": str(script) for who in ("worker", "executor")}
    options = {"master": "local-cluster[1,3,600]", "conf": {**amounts, **scripts}, "cluster": {"gpus": 1}}
    outcome = _run(options, tmp_path, _python_with(tmp_path, without=("__editable__", "tfos_magic")))
    _assert_trained(outcome)
    assert ".zip" in outcome["package"]
    seen = sorted(said.split()[3] for said in outcome["said"].values())
    assert len(set(seen)) == 2
    assert set(seen) < {"3", "5", "7"}


@pytest.mark.soak
def test_executors_without_tensorflow_give_one_error_naming_the_host(tmp_path: Path) -> None:
    python = _python_with(tmp_path, without=("tensorflow", "keras"))
    outcome = _run({"master": "local[3]"}, tmp_path, python)
    assert outcome["error"] == "ExecutorError"
    assert "tensorflow" in outcome["message"]
    assert socket.gethostname() in outcome["message"]
    assert "java" not in outcome["message"]


def test_a_connect_session_trains_and_refuses_as_cleanly(tmp_path: Path) -> None:
    refused = ["select 1 y, int(null) x", "select 1 y, 1 div (id * 0) x from range(3)"]
    outcome = _run({"remote": "local[3]", "refused": refused, "streaming": True}, tmp_path)
    _assert_trained(outcome)
    assert ".zip" in outcome["package"]
    nulls, division, streaming = outcome["refusals"]
    assert "column 'x' has nulls" in nulls
    assert "DIVIDE_BY_ZERO" in division
    assert "foreachBatch runs on the server" in streaming
    assert not any("\n" in refusal for refusal in outcome["refusals"])


@pytest.mark.soak
def test_a_connect_session_trains_through_a_relay_that_nothing_stays_of(tmp_path: Path) -> None:
    outcome = _run({"remote": "local[3]", "cluster": {"via": "spark"}}, tmp_path)
    _assert_trained(outcome)
    assert outcome["relayed"]


@pytest.mark.soak
@pytest.mark.parametrize("via", ["", "spark"])
def test_a_standalone_master_with_workers_on_two_addresses_trains_on_both(
    standalone: str, tmp_path: Path, via: str
) -> None:
    conf = {"spark.cores.max": "4", "spark.driver.host": "127.0.0.1", "spark.executor.cores": "2"}
    outcome = _run({"master": standalone, "conf": conf, "cluster": {"cores": 1, "via": via}}, tmp_path)
    _assert_trained(outcome)
    assert {host for host, _ in outcome["workers"]} <= {"127.0.0.2", "127.0.0.3"}


@pytest.mark.soak
def test_a_master_that_gives_no_executor_is_said_to(standalone: str, tmp_path: Path) -> None:
    conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "8g"}  # of workers that have two
    error = _run({"master": standalone, "conf": conf, "cluster": {"cores": 1}}, tmp_path)["message"]
    assert "0 of 3 slots free (0 in all" in error
    assert "Spark has given this application no executor" in error
    assert "spark.cores.max" in error


def _python_with(folder: Path, without: tuple[str, ...]) -> str:
    """A Python like this one whose packages are all of this environment's but those whose names begin so."""
    import venv

    home = folder / "executor-env"
    venv.create(home, with_pip=False, symlinks=True)
    target = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(without):
            (target / entry.name).symlink_to(entry)
    return str(home / "bin" / "python")
