"""GPUs in tasks of tensor functions. No GPU is there: a discovery script says that executors have some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.resource import ResourceInformation

from tests.jvm import EXECUTORS
from tfos_magic.errors import UsageError
from tfos_magic.frames.gpus import SETTING, profile_of, take_gpus

pytestmark = pytest.mark.timeout(700)  # of two sessions: executors may take long to come
TIMEOUT = 340
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.executor.memory": "600m"}


def _run(folder: Path, addresses: list[str], twice: bool = False, **conf: str) -> dict[str, Any]:
    script = folder / "gpus.sh"
    script.write_text(f"#!/bin/sh\necho '{json.dumps({'name': 'gpu', 'addresses': addresses})}'\n")
    script.chmod(0o755)
    found: dict[str, str] = {}
    for who in ("worker", "executor") if addresses else ():
        found[f"spark.{who}.resource.gpu.amount"] = str(len(addresses))
        found[f"spark.{who}.resource.gpu.discoveryScript"] = str(script)
    options = json.dumps({**QUIET, **EXECUTORS, **found, **conf})
    program = Path(__file__).with_name("gpu_program.py")
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(folder), "SPARK_WORKER_DIR": str(folder)}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(
        [sys.executable, str(program), options, json.dumps(twice)],
        capture_output=True,
        env=environment,
        cwd=folder,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    said = dict(json.loads(done.stdout.decode().splitlines()[-1]))
    assert sorted(row["x"] for row in said["rows"]) == [float(number) for number in range(8)]
    return said


@pytest.mark.soak
def test_each_task_sees_the_gpu_that_spark_gave_it_alone(tmp_path: Path) -> None:
    said = _run(tmp_path, ["3", "5"], **{"spark.python.worker.reuse": "false"})
    for row in said["rows"]:
        assert len(row["given"]) == 1
        assert row["seen"] == row["given"][0]
        assert row["growth"] == "true"
    assert {row["seen"] for row in said["rows"]} == {"3", "5"}
    assert not said["warnings"]


@pytest.mark.soak
def test_tasks_may_share_a_gpu_and_ask_for_none(tmp_path: Path) -> None:
    shared = _run(tmp_path, ["7"], twice=True, **{SETTING: "0.5"})
    assert all(row["y"] == row["x"] + 1 for row in shared["rows"])
    assert {(row["seen"], *row["given"]) for row in shared["rows"]} == {("7", "7")}
    assert not shared["warnings"]
    hidden = _run(tmp_path, ["7"], **{SETTING: "0"})
    assert {(row["seen"], *row["given"]) for row in hidden["rows"]} == {(None,)}


@pytest.mark.soak
def test_workers_that_go_from_task_to_task_are_warned_of(tmp_path: Path) -> None:
    said = _run(tmp_path, ["3", "5"])
    assert any("spark.python.worker.reuse=false" in text for text in said["warnings"])


@pytest.mark.soak
def test_gpus_that_the_session_gives_every_task_are_taken_as_they_come(tmp_path: Path) -> None:
    said = _run(tmp_path, ["7"], **{"spark.task.resource.gpu.amount": "0.5"})
    assert {(row["seen"], *row["given"]) for row in said["rows"]} == {("7", "7")}


def test_a_session_without_gpus_asks_for_none(spark: Any) -> None:
    assert profile_of(spark) is None


def test_a_process_sees_the_gpus_of_its_task_and_is_left_alone_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"):
        monkeypatch.setenv(name, "before")
    take_gpus({})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"
    take_gpus({"gpu": ResourceInformation("gpu", ["3", "GPU-5"])})
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,GPU-5"
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "before"


class Session:
    """A session of a standalone master whose executors have GPUs, as far as its settings are asked."""

    class sparkContext:
        master = "spark://host:7077"

    def __init__(self, **settings: str) -> None:
        self.conf = {"spark.executor.resource.gpu.amount": "1", **settings}


def test_a_setting_that_is_no_number_is_refused() -> None:
    for wrong in ("many", "-1"):
        with pytest.raises(UsageError, match=r"such as 1 or 0\.5, or 0 for none"):
            profile_of(Session(**{SETTING: wrong}))
    assert profile_of(Session(**{SETTING: "0"})) is None
