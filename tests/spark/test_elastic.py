"""A run goes on with more or fewer workers, from where it was."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests import sessions
from tests.soak import every
from tfos_magic import TFCluster
from tfos_magic.cluster.runs.run import Run
from tfos_magic.errors import ClusterError, StartTimeout, WorkerError
from tfos_magic.spark.session import cancel_tag, job_tag

CELL = """
import os
import signal
import time
import keras
import numpy as np

class Slowly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause)

    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, "of", tfos.size())

keras.utils.set_random_seed(3)
random = np.random.default_rng(5)
x = random.normal(size=(96, 8)).astype("float32")
y = (x[:, 0] > 0).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
data = train if fed else x
history = model.fit(data, None if fed else y, batch_size=None if fed else 16, epochs=4, verbose=0, callbacks=[Slowly()])
weights = model.get_weights()
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Eight slots on this machine."""
    yield from sessions.local_session(8)


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(spark, workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def train(spark: SparkSession) -> DataFrame:
    features = F.array(*[F.rand(i).cast("float") for i in range(8)])
    return spark.range(0, 96, 1, 3).select(features.alias("x"), (F.col("id") % 2).cast("float").alias("y"))


def _submit(cluster: TFCluster, frames: dict[str, Any], pause: float, **options: Any) -> Run:
    # Of as many rows for each of two workers, and for each of three: what is known of a share changes with the size.
    fed = {"frames": frames, "label": "y", "batch_size": 12} if frames else {}
    names = {"pause": pause, "fed": bool(frames)}
    return cluster.submit(CELL, names=names, outputs=["weights", "history"], seed=7, **fed, **options)


def _await_step(run: Run, epoch: int, step: int) -> None:
    deadline = time.monotonic() + 60
    while (run.state.epoch, run.state.step) < (epoch, step) and not run.done:
        assert time.monotonic() < deadline, run.state
        time.sleep(0.02)


def _sized(run: Run) -> list[str]:
    """What rank 0 printed of the epochs that it began."""
    return list(run.state.workers[0].log)


COUNTING = """
import time
import keras

class Slowly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(pause)
        if batch == fails:
            raise ValueError("as it is asked")

# A weight of each row, which says how often the row was trained.
data = tfos.dataset(folder, batch_size=16, features=["x"], label="y")
counts = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
model = keras.Sequential([keras.Input((128,)), counts])
model.compile(keras.optimizers.SGD(1.0), lambda y, out: out)
model.fit(data, epochs=2, verbose=0, callbacks=[Slowly()])
counts = -16 * counts.kernel.numpy()[:, 0]
"""


@pytest.fixture
def one_hot(tmp_path: Path) -> str:
    """128 rows in four files, each with a one where no other has it."""
    rows = np.eye(128, dtype="float32")
    for number, part in enumerate(np.split(rows, 4)):
        table = pa.table({"x": list(part), "y": np.zeros(32, "float32")})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=8)
    return str(tmp_path)


@pytest.mark.soak
def test_shuffled_files_are_trained_once_each_where_the_number_of_workers_changes(
    cluster: TFCluster, one_hot: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def count(fails: int = -1, **options: Any) -> Run:
        names = {"folder": one_hot, "fails": fails, "pause": 0.3}
        return cluster.submit(COUNTING, names=names, outputs=["counts"], seed=7, **options)

    run = count()
    _await_step(run, 0, 3)
    cluster.scale(3)
    np.testing.assert_allclose(run.wait(120)["counts"], 2, atol=1e-5)
    assert cluster.size == 3
    kept: dict[str, Any] = {"checkpoint_dir": str(tmp_path_factory.mktemp("kept")), "checkpoint_every": 3}
    with pytest.raises(WorkerError, match="as it is asked"):
        count(fails=5, **kept).wait(120)
    cluster.scale(2)
    run = count(resume=True, **kept)
    np.testing.assert_allclose(run.wait(120)["counts"], 2, atol=1e-5)
    assert any("2 workers instead of 3" in notice for notice in run.state.notices), run.state.notices


@pytest.mark.parametrize("fed", every(2, [True, False]), ids=["rows in order", "arrays"])
def test_a_run_goes_on_with_more_workers_and_with_fewer_after_its_next_step(
    cluster: TFCluster, train: DataFrame, fed: bool
) -> None:
    frames = {"train": train} if fed else {}
    expected = _submit(cluster, frames, 0.0, shuffle=False).wait()
    run = _submit(cluster, frames, 0.15, shuffle=False)
    before = [worker.agent.pid for worker in cluster.workers]
    _await_step(run, 1, 2)
    cluster.scale(3)
    _await_step(run, 2, 2)
    assert cluster.size == 3, run.state.notices
    assert [worker.agent.pid for worker in cluster.workers][:2] == before
    cluster.scale(2)
    results = run.wait(120)
    assert cluster.size == 2
    assert run.state.restarts == 0
    assert [notice for notice in run.state.notices if "from here on" in notice] == [
        "3 workers from here on.",
        "2 workers from here on.",
    ]
    assert len(results["history"].history["loss"]) == 4
    np.testing.assert_allclose(results["history"].history["loss"], expected["history"].history["loss"], rtol=1e-5)
    for ours, theirs in zip(results["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["sync", "local"])
def test_shuffled_rows_and_local_training_change_size_at_the_end_of_an_epoch(
    cluster: TFCluster, train: DataFrame, strategy: str
) -> None:
    run = _submit(cluster, {"train": train}, 0.1, strategy=strategy)
    _await_step(run, 1, 1)
    cluster.scale(3)
    results = run.wait(120)
    assert _sized(run) == ["epoch 2 of 3", "epoch 3 of 3"]
    assert len(results["history"].history["loss"]) == 4
    cluster.scale(2)
    assert cluster.size == 2


def test_what_cannot_change_size_is_refused_and_goes_on(cluster: TFCluster) -> None:
    with pytest.raises(StartTimeout, match=r"9 workers and 1 feed slot asked, \d of 10 slots free"):
        cluster.scale(9)
    run = cluster.submit("import time; time.sleep(2)", strategy="none")
    with pytest.raises(ClusterError, match="is still running: wait for it or stop it, then scale the cluster"):
        cluster.scale(1)
    run.wait(60)
    assert cluster.size == 2


@contextmanager
def _slots_held(spark: SparkSession, count: int) -> Iterator[None]:
    """Another job has so many slots while the block runs."""

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        time.sleep(600)
        yield from batches

    def work() -> None:
        with job_tag(spark, "held"), suppress(Exception):  # which is its end
            spark.range(0, count, 1, count).mapInArrow(hold, "id long").collect()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        cancel_tag(spark, "held")
        thread.join()


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("killed", [1, 2])
def test_between_its_bounds_a_run_takes_free_slots_and_goes_on_with_fewer_workers(
    cluster: TFCluster, spark: SparkSession, killed: int
) -> None:
    """Two slots are the other tests' cluster's, and a job has all that the cluster leaves when workers are killed:
    theirs are too few for feeding and all of them."""
    assert cluster.size == 2
    with TFCluster(spark, workers=2, most_workers=3) as made:
        assert made.size == 3
        run = _submit(made, {}, 0.4)
        _await_step(run, 1, 1)
        with _slots_held(spark, 3):
            for worker in made.workers[:killed]:
                os.kill(worker.agent.pid, signal.SIGKILL)
            _await_step(run, 1, 4)
            assert made.size == 2, run.state.notices
        results = run.wait(120)
        assert made.size == 3, run.state.notices
    assert run.state.restarts == 1
    assert len(results["history"].history["loss"]) == 4


@pytest.mark.soak
def test_a_change_that_no_run_took_up_is_forgotten_where_the_idle_cluster_changes(cluster: TFCluster) -> None:
    cluster.scale(2)
    run = cluster.submit("import time\ntime.sleep(2)")
    while run.phase in ("queued", "starting", "feeding"):
        time.sleep(0.02)
    cluster.scale(2)
    run.wait(60)
    cluster.scale(3)
    cluster.run("pass")
    taken = cluster.size
    cluster.scale(2)
    assert taken == 3
