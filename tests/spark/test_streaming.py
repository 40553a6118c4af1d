"""DataFrames larger than what the workers may spool: streamed in every epoch, and nothing left of it afterwards."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tfos_magic import TFCluster
from tfos_magic.cluster.runs.request import Observer
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.errors import DataError, RunInterrupted
from tfos_magic.feed.driver.parquet_scan import SWITCH

BUDGET_GB = 0.004
MEGABYTES = 64
ROWS = 4096

CELL = """
import keras
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(train.map(lambda row: (row["x"], row["y"])), epochs=3, verbose=0).history
weights = model.get_weights()
"""
MEMORY = """
import gc
import time
import psutil
import keras
import tfos_magic as tfos
for _ in train.take(2):
    pass
process, grown = psutil.Process(), []
for epoch in range(4):
    steps = 0
    for _ in train:
        if (epoch, steps) == (1, 1):
            time.sleep(2.5)  # while this worker dawdles rows run ahead on disk, as two heartbeats tell
        steps += 1
    gc.collect()
    grown.append(process.memory_info().rss)
grown = max(grown) - grown[0]
"""


class Watcher(Observer):
    """Keeps the run's state; interrupts it when so many steps are done."""

    def __init__(self, interrupt_at: int = 0) -> None:
        self.state: RunState | None = None
        self._interrupt_at = interrupt_at

    def update(self, state: RunState) -> None:
        self.state = state
        if self._interrupt_at and state.step >= self._interrupt_at:
            self._interrupt_at = 0
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    """Two workers of four slots, so that two tasks feed at once."""
    with TFCluster(local_session, workers=2, spool_gb=BUDGET_GB) as made:
        yield made


def small(spark: SparkSession, rows: int = ROWS) -> DataFrame:
    x = F.array((F.col("id") % 7).cast("float"), (F.col("id") % 3).cast("float"))
    return spark.range(0, rows, 1, 5).select(x.alias("x"), (F.col("id") % 5).cast("float").alias("y"))


def large(spark: SparkSession) -> DataFrame:
    """The rows of ``small`` with a ballast that makes them 64 MB, eight times the budget of both workers."""
    return small(spark).withColumn("ballast", F.encode(F.repeat(F.lit("x"), (MEGABYTES << 20) // ROWS), "utf-8"))


def idle(spark: SparkSession, cluster: TFCluster, seconds: float = 10.0) -> bool:
    """Whether no jobs but the agents' run, and no agent holds rows, before so many seconds have passed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        jobs = len(spark.sparkContext.statusTracker().getActiveJobsIds())
        rows = sum(sum(worker.beat.feeds.values()) + worker.beat.spool_bytes for worker in cluster.workers)
        if jobs == len(cluster.workers) and not rows:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.soak
def test_a_streamed_dataframe_trains_to_the_weights_of_a_spooled_one(
    local_session: SparkSession, cluster: TFCluster
) -> None:
    streamed, spooled, frames = Watcher(), Watcher(), (large(local_session), small(local_session))
    results = [
        cluster.run(
            CELL, frames={"train": frame}, batch_size=100, shuffle=False, outputs=["history", "weights"], observer=seen
        )
        for frame, seen in zip(frames, (streamed, spooled), strict=True)
    ]
    assert results[0]["history"]["loss"] == results[1]["history"]["loss"]
    assert all((one == other).all() for one, other in zip(results[0]["weights"], results[1]["weights"], strict=True))
    assert streamed.state is not None
    assert streamed.state.feeds["train"].streamed
    assert [text for text in streamed.state.notices if "anew in every epoch" in text and text.startswith("train ")]
    assert not [text for text in streamed.state.notices if "came from Spark" in text]
    assert spooled.state is not None
    assert not spooled.state.feeds["train"].streamed
    assert not spooled.state.notices


@pytest.mark.soak
def test_rows_that_spark_computes_otherwise_in_another_epoch_are_told_of_once(
    local_session: SparkSession, cluster: TFCluster
) -> None:
    seen, drawn = Watcher(), F.udf(lambda y: y + random.random(), "float").asNondeterministic()
    frame = large(local_session).withColumn("y", drawn("y"))
    cluster.run(CELL, frames={"train": frame}, batch_size=100, shuffle=False, observer=seen)
    assert seen.state is not None
    (notice,) = [text for text in seen.state.notices if "came from Spark" in text]
    assert notice.startswith("train: different values came from Spark in an epoch after the first.")


@pytest.mark.soak
def test_parquet_files_are_streamed_without_the_jvm_and_train_to_the_same_weights(
    local_session: SparkSession, cluster: TFCluster, tmp_path: Path
) -> None:
    large(local_session).write.parquet(str(tmp_path / "rows"))
    frame = local_session.read.parquet(str(tmp_path / "rows"))
    results = []
    for switch in ("true", "false"):
        local_session.conf.set(SWITCH, switch)
        seen = Watcher()
        out = cluster.run(
            CELL, frames={"train": frame}, batch_size=100, shuffle=False, outputs=["weights"], observer=seen
        )
        assert seen.state is not None
        assert seen.state.feeds["train"].streamed
        results.append(out["weights"])
    local_session.conf.unset(SWITCH)
    assert all((one == other).all() for one, other in zip(*results, strict=True))


@pytest.mark.soak
def test_epochs_take_neither_memory_nor_disk_and_one_that_is_left_early_ends_its_job(
    local_session: SparkSession, cluster: TFCluster
) -> None:
    most = 0

    class Meter(Observer):
        def update(self, state: RunState) -> None:
            nonlocal most
            most = max([most, *(worker.beat.spool_bytes for worker in cluster.workers)])

    frames = {"train": large(local_session)}
    out = cluster.run(MEMORY, frames=frames, batch_size=64, shuffle=False, outputs=["grown", "steps"], observer=Meter())
    assert out["steps"] == ROWS // 64
    # A worker gets 32 MB in each of the four epochs; what malloc keeps comes and goes by up to 20.
    assert out["grown"] < (MEGABYTES << 20) // 2, "of the 96 MB that came after the first epoch"
    assert 0 < most <= BUDGET_GB * (1 << 30)
    assert idle(local_session, cluster)


@pytest.mark.soak
def test_an_interrupt_in_the_middle_of_an_epoch_leaves_nothing_and_the_cluster_goes_on(
    local_session: SparkSession, cluster: TFCluster
) -> None:
    frame = large(local_session)
    with pytest.raises(RunInterrupted):
        cluster.run(CELL, frames={"train": frame}, batch_size=16, observer=Watcher(interrupt_at=20))
    assert idle(local_session, cluster)
    again = Watcher()
    cluster.run(CELL, frames={"train": frame}, batch_size=512, observer=again)
    assert again.state is not None
    assert again.state.feeds["train"].reused


@pytest.mark.soak
def test_a_task_that_fails_in_a_later_epoch_is_told_as_in_a_feed(
    local_session: SparkSession, cluster: TFCluster, tmp_path: Path
) -> None:
    marker = tmp_path / "fail"

    def fail_when_told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if marker.exists():
                raise ValueError("a value of the user's own")
            yield batch

    told = f"""
class Tell(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            open({str(marker)!r}, "w").close()
"""
    cell = CELL.replace("model = ", f"{told}\nmodel = ", 1).replace("epochs=3", "epochs=3, callbacks=[Tell()]")
    frame = large(local_session).mapInArrow(fail_when_told, "x array<float>, y float, ballast binary")
    with pytest.raises(DataError, match="a value of the user's own"):
        cluster.run(cell, frames={"train": frame}, batch_size=256)
    assert idle(local_session, cluster)


@pytest.mark.soak
def test_a_feed_that_no_run_uses_makes_room_and_can_be_fed_again(
    local_session: SparkSession, cluster: TFCluster
) -> None:
    frames: dict[str, Any] = {name: small(local_session, 300_000) for name in ("first", "second")}
    seen: list[tuple[str, bool, bool]] = []
    for name in ("first", "second", "second", "first"):
        watcher = Watcher()
        cluster.run("pass", frames={"train": frames[name]}, observer=watcher)
        assert watcher.state is not None
        feed = watcher.state.feeds["train"]
        seen.append((name, feed.reused, feed.streamed))
    assert seen == [
        ("first", False, False),
        ("second", False, False),
        ("second", True, False),
        ("first", False, False),
    ]
