"""A DataFrame fed by real Spark tasks, through real Flight receivers, into tf.data."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.feed_access import feed_access
from tests.soak import every
from tests.spark.ranks import Ranks
from tfos_magic.columns.schema_plan import plan_feed
from tfos_magic.errors import DataError, FeedError
from tfos_magic.feed.driver.feed_job import FeedReport, feed_dataframe
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset
from tfos_magic.spark import planning
from tfos_magic.spark.batch_sizes import SETTING, WIDE_ROWS, small_batches
from tfos_magic.spark.session import repeats
from tfos_magic.transport.messages import SpoolHandle


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("feed tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def ranks() -> Iterator[Callable[[int], Ranks]]:
    made: list[Ranks] = []

    def make(world: int) -> Ranks:
        made.append(Ranks(world))
        return made[-1]

    yield make
    for each in made:
        each.close()


def global_batches(handles: list[SpoolHandle], batch_size: int, **how: Any) -> list[list[int]]:
    """The ids of each global batch over all ranks, in the order of the DataFrame (ids are row numbers here)."""
    datasets = [list(feed_dataset(handle, batch_size=batch_size, **how).as_numpy_iterator()) for handle in handles]
    steps = {len(batches) for batches in datasets}
    assert len(steps) == 1, f"ranks differ in their number of steps: {steps}"
    return [sorted(np.concatenate([batch["id"] for batch in step]).tolist()) for step in zip(*datasets, strict=True)]


def numbered(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    return spark.range(0, rows, 1, partitions)


def with_empty_partitions(spark: SparkSession) -> DataFrame:
    return spark.range(0, 100, 1, 7).where("id < 15 or (id > 50 and id < 60) or id = 99")


FRAMES: dict[str, Callable[[SparkSession], DataFrame]] = {
    "one partition": lambda spark: numbered(spark, 101, 1),
    "many partitions": lambda spark: numbered(spark, 97, 5),
    "more partitions than slots and rows": lambda spark: numbered(spark, 11, 17),
    "empty partitions": with_empty_partitions,
    "several Arrow batches in a partition": lambda spark: numbered(spark, 3001, 2),
    "after a sort": lambda spark: numbered(spark, 200, 4).orderBy(F.desc("id")).orderBy("id"),
}


@pytest.mark.parametrize("name", every(6, FRAMES))
def test_each_global_batch_holds_the_rows_one_plain_process_would_take(
    spark: SparkSession, ranks: Callable[[int], Ranks], name: str
) -> None:
    df = FRAMES[name](spark).cache()
    ids = [row.id for row in df.collect()]
    for world in (1, 2, 3):
        _, handles = ranks(world).feed(df)
        for batch_size in (7, 64, 5000):
            plain = [ids[start : start + batch_size] for start in range(0, len(ids), batch_size)]
            assert global_batches(handles, batch_size) == plain
    df.unpersist()


def test_every_kind_of_column_arrives_as_it_was(spark: SparkSession, ranks: Callable[[int], Ranks]) -> None:
    rows = [(i, i / 3, i % 2 == 0, [i, i + 1], [i / 7] * 3, f"näme {i}", bytes([i, 0])) for i in range(23)]
    df = spark.createDataFrame(
        rows, "id int, d double, flag boolean, l array<bigint>, f array<float>, s string, b binary"
    ).repartition(3, "id")
    expected = df.collect()
    _, (handle,) = ranks(1).feed(df)
    (batch,) = feed_dataset(handle, batch_size=100).as_numpy_iterator()
    assert batch["id"].dtype == np.int32
    assert batch["flag"].dtype == np.bool_
    assert batch["f"].dtype == np.float32
    for name in ("id", "d", "flag", "l"):
        assert batch[name].tolist() == [row[name] for row in expected]
    np.testing.assert_array_equal(batch["f"], np.array([row.f for row in expected], np.float32))
    assert [text.decode() for text in batch["s"]] == [row.s for row in expected]
    assert batch["b"].tolist() == [bytes(row.b) for row in expected]


def test_odd_column_names_are_fed(spark: SparkSession, ranks: Callable[[int], Ranks]) -> None:
    df = spark.createDataFrame([(1, 2), (3, 4)], "`a.b` int, `c``d e` int")
    _, (handle,) = ranks(1).feed(df)
    (batch,) = feed_dataset(handle, batch_size=9).as_numpy_iterator()
    assert sorted(batch["a.b"].tolist()) == [1, 3]
    assert sorted(batch["c`d e"].tolist()) == [2, 4]


def test_a_task_that_fails_halfway_and_is_tried_again_neither_repeats_nor_loses_rows(
    spark: SparkSession, ranks: Callable[[int], Ranks]
) -> None:
    def fail_once_late(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == 3 and context and context.partitionId() == 1 and context.attemptNumber() == 0:
                raise RuntimeError("lost on purpose")
            wide = pa.array(np.zeros(len(batch) * 2000))
            offsets = pa.array(np.arange(len(batch) + 1, dtype=np.int32) * 2000)
            yield pa.record_batch([batch.column(0), pa.ListArray.from_arrays(offsets, wide)], names=["id", "wide"])

    df = numbered(spark, 6000, 2).repartition(2).mapInArrow(fail_once_late, "id long, wide array<double>")
    cluster = ranks(2)
    report, handles = cluster.feed(df)
    assert report.rows == 6000
    seen = [number for batch in global_batches(handles, 999) for number in batch]
    assert sorted(seen) == list(range(6000))
    assert sum(spool.bytes for spool in cluster.spools) > 1.1 * report.bytes, "the failed task had sent nothing"


def test_nulls_are_one_clean_error_that_names_the_column(spark: SparkSession, ranks: Callable[[int], Ranks]) -> None:
    df = numbered(spark, 100, 4).withColumn("x", F.when(F.col("id") != 70, F.col("id")))
    with pytest.raises(DataError, match=r"column 'x' has nulls.*dropna") as caught:
        ranks(2).feed(df)
    assert "Traceback" not in str(caught.value)


def test_a_frame_without_rows_is_refused(spark: SparkSession, ranks: Callable[[int], Ranks]) -> None:
    with pytest.raises(DataError, match="no rows"):
        ranks(2).feed(numbered(spark, 10, 3).where("id < 0"))


@pytest.mark.soak
def test_a_frame_that_spark_cannot_compute_says_why_without_stacks(
    spark: SparkSession, ranks: Callable[[int], Ranks]
) -> None:
    def fail(number: int) -> int:
        raise ValueError("a value of the user's own")

    broken = F.udf(fail, "long", useArrow=False)

    with pytest.raises(DataError, match="a value of the user's own") as caught:
        ranks(1).feed(numbered(spark, 10, 2).withColumn("x", broken("id")))
    assert len(str(caught.value).splitlines()) == 1
    impossible = numbered(spark, 10, 2).select(F.expr("1 div (id * 0)").alias("y"))
    with pytest.raises(DataError, match="DIVIDE_BY_ZERO") as caught:
        ranks(1).feed(impossible)
    assert len(str(caught.value).splitlines()) == 1


def test_a_wrong_token_is_a_clean_error_and_nothing_is_stored(
    spark: SparkSession, ranks: Callable[[int], Ranks]
) -> None:
    cluster = ranks(2)
    with pytest.raises(FeedError, match="refused this cluster's token"):
        cluster.feed(numbered(spark, 10, 2), token="wrong")
    assert [list(spool.rows().values()) for spool in cluster.spools] == [[0], [0]]


@pytest.mark.soak
def test_a_worker_that_is_gone_is_named(spark: SparkSession, ranks: Callable[[int], Ranks]) -> None:
    cluster = ranks(2)
    endpoints = [receiver.endpoint for receiver in cluster.receivers]
    cluster.receivers[1].close()
    plan = plan_feed(numbered(spark, 1, 1).schema)
    for rank, spool in enumerate(cluster.spools):
        spool.open("feed", rank, 2, plan.schema)
    with pytest.raises(FeedError, match=re.escape(f"worker 1 at {endpoints[1].uri} cannot be reached")) as caught:
        feed_dataframe(
            numbered(spark, 10, 2), plan, feed_id="feed", endpoints=endpoints, access=feed_access(), timeout=5
        )
    assert len(str(caught.value).splitlines()) == 1


def test_a_cancelled_feed_says_so(spark: SparkSession, ranks: Callable[[int], Ranks]) -> None:
    cluster, tag = ranks(1), f"feed-{uuid.uuid4().hex}"
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    errors: list[Exception] = []

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            time.sleep(20)
            yield batch

    def run() -> None:
        spark.sparkContext.addJobTag(tag)
        try:
            cluster.feed(numbered(spark, 10, 1).mapInArrow(slow, "id long"))
        except FeedError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tfos-test-feed")
    thread.start()
    while thread.is_alive() and not spark.sparkContext.statusTracker().getActiveJobsIds():
        thread.join(0.05)
    spark.sparkContext.cancelJobsWithTag(tag)
    thread.join(30)
    assert "cancelled" in str(errors[0])


@pytest.mark.soak
def test_the_report_counts_rows_bytes_and_winning_tasks(spark: SparkSession, ranks: Callable[[int], Ranks]) -> None:
    report, _ = ranks(2).feed(numbered(spark, 1000, 4))
    assert isinstance(report, FeedReport)
    assert [(partition, rows) for partition, _, rows in report.partitions] == [(p, 250) for p in range(4)]
    assert report.rows == 1000
    assert 8000 <= report.bytes < 9000
    assert report.seconds > 0


@pytest.mark.soak
def test_what_spark_computes_alike_again_is_told_from_what_it_may_not(spark: SparkSession, tmp_path: Path) -> None:
    numbers = spark.range(0, 100, 1, 4).withColumn("x", F.rand(1))
    numbers.write.parquet(str(tmp_path / "p"))
    alike = [numbers, spark.read.parquet(str(tmp_path / "p")).where("x > 0.5"), numbers.cache()]
    assert [repeats(df) for df in alike] == [True] * 3
    again = numbers.orderBy("x")
    shuffled = [again, numbers.repartition(3), numbers.groupBy("x").count(), again.cache()]
    assert [repeats(df) for df in shuffled] == [False] * 4
    again.unpersist()
    numbers.unpersist()


def test_wide_rows_come_in_small_batches_and_the_session_is_left_as_it_is(spark: SparkSession) -> None:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"rows": [max(batch.num_rows for batch in batches)]})

    def most(frame: DataFrame) -> int:
        return max(row.rows for row in frame.mapInArrow(count, "rows bigint").collect())

    narrow = numbered(spark, 3000, 1)
    wide = narrow.select(F.array(F.col("id").cast("float")).alias("x"))
    own = spark.conf.get(SETTING)
    with small_batches(spark, plan_feed(wide.schema)):
        assert most(wide) == int(own)
    spark.conf.unset(SETTING)
    try:
        for frame, rows in ((wide, WIDE_ROWS), (wide.repartition(1), WIDE_ROWS), (narrow, 3000)):
            with small_batches(spark, plan_feed(frame.schema)):
                assert most(frame) == rows
        assert most(wide) == 3000
    finally:
        spark.conf.set(SETTING, own)


@pytest.mark.parametrize("kind", every(3, ["files through Spark", "files in place", "a range"]))
def test_what_is_fed_again_with_other_cores_comes_in_the_partitions_that_it_had(
    spark: SparkSession, ranks: Callable[[int], Ranks], tmp_path: Path, kind: str
) -> None:
    spark.range(4_000, numPartitions=8).write.parquet(str(tmp_path / "rows"))
    files = spark.read.parquet(str(tmp_path / "rows"))
    frames = {"files in place": files, "files through Spark": files.where("id >= 0")}
    frame = frames.get(kind, spark.sql("select * from range(4000)"))
    receivers = ranks(2)
    try:
        spark.conf.set(planning.SETTING, "4")
        first, _ = receivers.feed(frame)
        spark.conf.set(planning.SETTING, "2")
        other, _ = receivers.feed(frame)
        again, _ = receivers.feed(frame, parallelism=4)
        assert (len(first.digests), len(other.digests)) == (4, 2)
        assert again.digests == first.digests
        assert spark.conf.get(planning.SETTING) == "2"
    finally:
        spark.conf.unset(planning.SETTING)
    settings = spark.sparkContext._jvm.org.apache.spark.sql.internal.SQLConf.get().getAllConfs().toString()
    again, _ = receivers.feed(frame, parallelism=4)
    assert again.digests == first.digests
    assert spark.sparkContext._jvm.org.apache.spark.sql.internal.SQLConf.get().getAllConfs().toString() == settings
