"""Every kind of attack at every port of a cluster that trains: it ends with the weights of one that was left alone."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests import sessions
from tests.security.nonsense import MANY
from tfos_magic import TFCluster

CELL = """
import pathlib, time
import keras

def gate(epoch, logs=None):
    name = {{2: "begun", {epochs} - 2: "seen"}}.get(epoch, "")
    while not (pathlib.Path({folder!r}) / name).exists():
        time.sleep(0.02)
    time.sleep({pause})

keras.utils.set_random_seed(5)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
gated = keras.callbacks.LambdaCallback(on_epoch_begin=gate)
model.fit(train, epochs={epochs}, verbose=0, callbacks=[gated])
weights = model.get_weights()
"""
EPOCHS, PAUSE = 30, 0.1
OPTIONS: dict[str, Any] = {"label": "y", "batch_size": 32, "outputs": ["weights"]}
GROWTH = 50 << 20


@pytest.fixture(scope="module")
def local_session() -> Iterator[SparkSession]:
    yield from sessions.local_session(4)


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def train(local_session: SparkSession) -> Any:
    features = F.array(*[F.rand(i).cast("float") for i in range(4)])
    frame = local_session.range(0, 400, 1, 2).select(features.alias("x"), (F.col("id") % 2).alias("y"))
    return frame.cache()


def _ports(cluster: TFCluster) -> list[tuple[str, int]]:
    """The control socket's, then those for feeds."""
    uris = [cluster.endpoint, *(worker.agent.feed.uri for worker in cluster.workers)]
    return [(host, int(port)) for host, _, port in (uri.split("://", 1)[1].rpartition(":") for uri in uris)]


def _memory(cluster: TFCluster) -> dict[int, int]:
    pids = [os.getpid(), *(pid for worker in cluster.workers for pid in (worker.pid, worker.agent.pid))]
    return {pid: psutil.Process(pid).memory_info().rss for pid in pids}


@pytest.mark.soak
def test_a_run_that_all_strangers_attack_ends_with_the_weights_of_one_left_alone(
    cluster: TFCluster,
    train: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    calm, attacked = tmp_path / "calm", tmp_path / "attacked"
    for folder in (calm, attacked, calm / "begun", calm / "seen"):
        folder.mkdir()
    cell = CELL.format(epochs=EPOCHS, pause=0, folder=str(calm))
    alone = cluster.run(cell, frames={"train": train}, seed=1, **OPTIONS)["weights"]
    assert cluster._control is not None
    issued = [cluster._control.issue(job) for job in ("agent", "other")]
    keys = [[key.decode() for key in (each.server_public, each.public, each.secret)] for each in issued]
    command = [sys.executable, "-m", "tests.security.attacker"]
    with (
        caplog.at_level(logging.WARNING, "tfos_magic"),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker,
    ):
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        cell = CELL.format(epochs=EPOCHS, pause=PAUSE, folder=str(attacked))
        run = cluster.submit(cell, frames={"train": train}, seed=1, **OPTIONS)
        _await_epochs(run, 2)
        before = _memory(cluster)
        attacker.stdin.write(json.dumps({"ports": _ports(cluster), "keys": keys}) + "\n")
        attacker.stdin.flush()
        assert attacker.stdout.readline() == "begun\n"
        (attacked / "begun").touch()
        _await_epochs(run, EPOCHS - 2)
        after = _memory(cluster)
        (attacked / "seen").touch()
        weights = run.wait(60)["weights"]
        done = json.loads(attacker.communicate(timeout=60)[0])
    assert (run.state.restarts, run.state.notices) == (0, [])
    assert done.pop("mutate") == MANY
    assert min(done.values()) > 0, done
    assert all((mine == other).all() for mine, other in zip(weights, alone, strict=True))
    assert all(after[pid] - before[pid] < GROWTH for pid in before)
    assert "andshake" not in capfd.readouterr().err  # of gRPC, a line for each
    said = [record.getMessage() for record in caplog.records if record.name.startswith("tfos_magic")]
    assert any("refused a connection" in text for text in said)
    assert len(said) == len(set(said))
    assert len(said) < 40, said


def _await_epochs(run: Any, count: int) -> None:
    while len(run.history) < count:
        assert not run.done, run.state.error
        time.sleep(0.05)
