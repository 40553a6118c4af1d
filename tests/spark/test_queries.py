"""Structured Streaming: a run goes on until the query ends, and the query ends with the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tfos_magic import TFCluster
from tfos_magic.cluster.runs.request import Observer
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.errors import DataError, RunInterrupted, UsageError, WorkerError

ROWS, FILES, BATCH = 1000, 8, 64

SEEN = "seen = [batch['id'].numpy().tolist() for batch in train]"
FIT = """
import keras
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.001), "mse")
losses = model.fit(train, epochs=1, verbose=0).history["loss"]
"""


class After(Observer):
    """Does something once when the run has taken some steps."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def update(self, state: RunState) -> None:
        if state.step > 5 and self._act:
            act, self._act = self._act, None
            act()


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=2) as made:
        yield made


def rate(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 500).option("numPartitions", 2).load()
    x = F.array((F.col("value") % 3).cast("float"), (F.col("value") % 5).cast("float"))
    return rows.select(x.alias("x"), (F.col("value") % 7).cast("float").alias("y"))


def slow_rate(spark: SparkSession) -> DataFrame:
    """Rows half a second after they came, so that a stop of the query meets a micro-batch under way."""

    def slowly(blocks: Iterator[Any]) -> Iterator[Any]:
        for block in blocks:
            time.sleep(0.5)
            yield block

    rows = rate(spark)
    return rows.mapInPandas(slowly, rows.schema)


def files(spark: SparkSession, folder: Path) -> DataFrame:
    """Eight files, which a query reads three at a time."""
    rows = spark.range(0, ROWS, 1, FILES)
    rows.write.parquet(str(folder))
    return spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 3).parquet(str(folder))


def interrupt() -> None:
    raise KeyboardInterrupt


def test_every_row_of_a_file_source_comes_once_in_global_batches_that_run_across_micro_batches(
    local_session: SparkSession, cluster: TFCluster, tmp_path: Path
) -> None:
    frame = cluster.feed_stream(files(local_session, tmp_path / "rows"), trigger={"availableNow": True})
    seen = cluster.run(SEEN, frames={"train": frame}, batch_size=BATCH, strategy="none", outputs=["seen"])["seen"]
    together = [[*one, *other] for one, other in zip(seen[0], seen[1], strict=True)]
    assert [len(batch) for batch in together] == [BATCH] * (ROWS // BATCH) + [ROWS % BATCH]
    assert sorted(row for batch in together for row in batch) == list(range(ROWS))
    assert not local_session.streams.active


@pytest.mark.soak
@pytest.mark.parametrize("source", [rate, slow_rate])
def test_a_run_on_a_rate_source_ends_well_when_the_query_is_stopped(
    local_session: SparkSession, cluster: TFCluster, source: Any
) -> None:
    def stop() -> None:
        (query,) = local_session.streams.active
        query.stop()

    out = cluster.run(
        FIT,
        frames={"train": source(local_session)},
        label="y",
        batch_size=BATCH,
        outputs=["losses"],
        observer=After(stop),
    )
    assert len(out["losses"]) == 1


@pytest.mark.soak
def test_an_interrupt_stops_the_query_and_all_workers_at_one_step(
    local_session: SparkSession, cluster: TFCluster
) -> None:
    cell = FIT.replace("losses = ", "try:\n    ") + "except Exception as error:\n    how = repr(error)\n    raise\n"
    with pytest.raises(RunInterrupted) as interrupted:
        cluster.run(
            cell,
            frames={"train": rate(local_session)},
            label="y",
            batch_size=BATCH,
            outputs=["how", "model"],
            observer=After(interrupt),
        )
    assert interrupted.value.values["how"].startswith("RunStopped")
    assert not local_session.streams.active
    assert cluster.run("one = 1", outputs=["one"]) == {"one": 1}


@pytest.mark.soak
def test_a_query_that_fails_or_gives_no_rows_is_told(
    local_session: SparkSession, cluster: TFCluster, tmp_path: Path
) -> None:
    stream = files(local_session, tmp_path / "rows")
    nulls = stream.select(F.when(F.col("id") < 900, F.col("id")).alias("id"))
    with pytest.raises(DataError, match="column 'id' has nulls"):
        cluster.run(SEEN, frames={"train": nulls}, batch_size=BATCH)
    nothing = cluster.feed_stream(stream.where("id < 0"), trigger={"availableNow": True})
    with pytest.raises(DataError, match="ended before its first row"):
        cluster.run(SEEN, frames={"train": nothing}, batch_size=BATCH)
    assert not local_session.streams.active


@pytest.mark.soak
def test_a_second_time_over_a_query_is_refused(local_session: SparkSession, cluster: TFCluster, tmp_path: Path) -> None:
    frame = cluster.feed_stream(files(local_session, tmp_path / "rows"), trigger={"availableNow": True})
    with pytest.raises((UsageError, WorkerError), match="read it once"):
        cluster.run(f"{SEEN}\n{SEEN}", frames={"train": frame}, batch_size=BATCH)
