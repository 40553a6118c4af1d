"""An agent or a whole executor is lost: the cluster comes back, is fed again, and the run ends as it would have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.faults.cells import Watch, furthest, run
from tests.faults.conftest import HEARTBEAT_TIMEOUT
from tests.standalone import standalone as standalone
from tfos_magic import TFCluster
from tfos_magic.errors import WorkerLost
from tfos_magic.feed.driver import spooled_feeds
from tfos_magic.feed.driver.feed_job import feed_dataframe

# The trainer dies with its agent, but on a busy host not before it has trained on for a while.
KILL_AGENT = "os.kill({pid}, signal.SIGKILL); time.sleep(60)"


@pytest.fixture
def fresh(spark: SparkSession) -> Iterator[TFCluster]:
    """A cluster of the test's own, for what it costs is agents."""
    with TFCluster(spark, workers=2, heartbeat_timeout=HEARTBEAT_TIMEOUT) as made:
        yield made


@pytest.fixture
def train(spark: SparkSession) -> DataFrame:
    features = F.array(*[F.rand(i).cast("float") for i in range(8)])
    return spark.range(0, 96, 1, 3).select(features.alias("x"), (F.col("id") % 2).cast("float").alias("y"))


@pytest.fixture
def fed_to(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The ranks that each feed is sent to; none stands for all."""
    told: list[list[int]] = []

    def note(*args: Any, ranks: Sequence[int], **options: Any) -> Any:
        told.append(list(ranks))
        return feed_dataframe(*args, ranks=ranks, **options)

    monkeypatch.setattr(spooled_feeds, "feed_dataframe", note)
    return told


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_killed_agent_is_replaced_its_share_fed_again_and_the_run_goes_on(
    fresh: TFCluster, train: DataFrame, fed_to: list[list[int]], tmp_path: Path
) -> None:
    data: dict[str, Any] = {"frames": {"train": train}, "label": "y", "batch_size": 16, "seed": 7}
    undisturbed = run(fresh, "pass", tmp_path / "nothing", **data)
    before = [worker.agent.pid for worker in fresh.workers]
    watch = Watch()
    results = run(fresh, KILL_AGENT.format(pid=before[1]), tmp_path / "mark", watch=watch, **data)
    assert furthest(results, undisturbed) <= 1e-5
    assert watch.state.restarts == 1
    assert not watch.state.feeds["train"].reused
    (notice,) = watch.state.notices
    assert notice.startswith("Worker 1 was lost because its executor or its Spark task died in epoch 3")
    assert fed_to == [[], [1]], "the share of the lost worker was to be sent again, and no other"
    assert fresh.workers[0].agent.pid == before[0]
    assert fresh.workers[1].agent.pid != before[1]

    os.kill(fresh.workers[0].agent.pid, signal.SIGKILL)
    with fresh.membership.lock:
        assert fresh.membership.lock.wait_for(lambda: bool(fresh.membership.lost), 20), (
            "the loss was not noticed within 20 s"
        )
    watch = Watch()
    results = run(fresh, "pass", tmp_path / "mark", watch=watch, **data)
    assert furthest(results, undisturbed) <= 1e-5
    assert watch.state.restarts == 0
    assert "between runs" in watch.state.notices[0]
    assert fed_to == [[], [1], [0]]

    started = time.monotonic()
    with pytest.raises(WorkerLost, match=r"Worker 1 on 127.0.0.1 did not answer for \d+ s") as caught:
        run(fresh, f"os.kill({fresh.workers[1].agent.pid}, signal.SIGSTOP)", tmp_path / "another", max_restarts=0)
    assert time.monotonic() - started < HEARTBEAT_TIMEOUT + 10
    assert "--max-restarts is 0" in str(caught.value)
    assert furthest(run(fresh, "pass", tmp_path / "mark", **data), undisturbed) <= 1e-5


@pytest.mark.timeout(240)
def test_rows_that_spark_computes_otherwise_after_a_loss_are_told_of_and_their_epoch_begins_anew(
    fresh: TFCluster, spark: SparkSession, train: DataFrame, tmp_path: Path
) -> None:
    """Spark vouches for a function that reads a file; the file changes when the agent is killed."""
    (changing := tmp_path / "changing").write_text("0")
    read = F.udf(lambda y: y + float(changing.read_text()), "float")
    frames = {"train": train.withColumn("y", read("y"))}
    watch = Watch()
    fault = f"pathlib.Path({str(changing)!r}).write_text('1'); " + KILL_AGENT.format(pid=fresh.workers[1].agent.pid)
    run(fresh, fault, tmp_path / "mark", watch=watch, frames=frames, label="y", batch_size=16, checkpoint_every=2)
    assert watch.state.restarts == 1
    assert len(watch.state.notices) == 3, watch.state.notices
    lost, changed, back = watch.state.notices
    assert lost.startswith("Worker 1 was lost")
    assert "restarted from epoch 3, step 3" in lost
    assert changed.startswith("train: Spark gave different values when it was fed anew after the loss of a worker")
    assert "train with other rows" in back
    assert back.endswith("It goes back to epoch 3, and may end with other weights than an undisturbed run.")


@pytest.mark.soak
def test_an_agent_killed_while_it_is_fed_is_replaced_and_fed_from_the_start(
    fresh: TFCluster, spark: SparkSession, train: DataFrame, tmp_path: Path
) -> None:
    mark = str(tmp_path / "computing")
    dawdle = F.udf(lambda y: (Path(mark).touch(), time.sleep(0.03), y)[2], "float")
    slow = train.withColumn("y", dawdle("y"))
    killed = []

    def kill(state: Any) -> bool:
        if not killed and Path(mark).exists():
            killed.append(fresh.workers[1].agent.pid)
            os.kill(killed[0], signal.SIGKILL)
        return False

    watch = Watch(until=kill)
    results = run(fresh, "pass", tmp_path / "mark", watch=watch, frames={"train": slow}, label="y", batch_size=16)
    assert killed
    assert watch.state.restarts == 1
    assert len(results["history"].history["loss"]) == 4
    assert watch.state.feeds["train"].rows == 96


@pytest.fixture
def orphans(spark: SparkSession) -> Iterator[list[int]]:
    """Python workers whose daemon a test ends: killed, and then found dead by Spark, of which each fails one job."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for _ in range(10):
        with suppress(Py4JJavaError):
            spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
            return


@pytest.mark.soak
def test_agents_live_on_when_spark_begins_the_daemon_of_its_python_workers_anew(
    orphans: list[int], fresh: TFCluster, tmp_path: Path
) -> None:
    agents = [worker.agent.pid for worker in fresh.workers]
    daemon = psutil.Process(agents[0]).parent()
    assert daemon is not None
    orphans += [child.pid for child in daemon.children()]  # and agents of earlier tests, idle now
    daemon.terminate()
    daemon.wait(20)
    with fresh.membership.lock:
        assert not fresh.membership.lock.wait_for(lambda: bool(fresh.membership.lost), 3)
    assert len(run(fresh, "pass", tmp_path / "nothing")["history"].history["loss"]) == 4
    assert [worker.agent.pid for worker in fresh.workers] == agents


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_killed_executor_is_replaced_and_the_run_goes_on(tmp_path: Path, project: Path) -> None:
    outcome = _outcome("executor_program", [str(tmp_path)], tmp_path, project)
    assert outcome["restarts"] == 1, outcome
    assert outcome["furthest"] <= 1e-5
    assert "restarted from" in outcome["notices"][-1]
    assert outcome["count"] == 9


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_dynamic_allocation_brings_executors_keeps_those_of_workers_and_gets_back_the_others(
    standalone: str, tmp_path: Path, project: Path
) -> None:
    outcome = _outcome("dynamic_program", [standalone, str(tmp_path)], tmp_path, project)
    assert outcome["executors"] == [0, 2], outcome
    assert not [found for found in outcome["doctor"] if found[2]]
    too_many, leaving = outcome["refused"]
    assert "4 workers and 1 feed slot asked, and dynamic allocation may bring 4 in all" in too_many
    assert "dynamic allocation then takes their executors away as idle" in leaving
    assert outcome["restarts"] == 1
    assert outcome["furthest"] <= 1e-5
    assert set(outcome["hosts"]) <= {"127.0.0.2", "127.0.0.3"}
    assert [outcome[what] for what in ("shrunk", "stayed", "grown", "emptied", "ended")] == [True] * 5
    assert outcome["reason"] == "no run came for 4 s (idle_timeout)"
    assert outcome["count"] == 9


def _outcome(program: str, arguments: list[str], folder: Path, project: Path) -> Any:
    """What a program of this folder prints last, as JSON."""
    env = {**os.environ, "SPARK_LOCAL_DIRS": str(folder), "SPARK_WORKER_DIR": str(folder), "PYTHONPATH": str(project)}
    command = [sys.executable, "-m", f"tests.faults.{program}", *arguments]
    done = subprocess.run(command, capture_output=True, env=env, cwd=folder, timeout=280)
    assert done.returncode == 0, done.stderr.decode().partition("Traceback")[2][:5000]  # the JVM's end says much more
    return json.loads(done.stdout.decode().splitlines()[-1])
