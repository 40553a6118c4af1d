"""A DataFrame that is a plain scan of Parquet is fed without the JVM: the same rows, on the same ranks, in order."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests import sessions
from tests.spark.ranks import Ranks
from tfos_magic.errors import DataError
from tfos_magic.feed.driver import feed_job
from tfos_magic.feed.driver.parquet_scan import SWITCH, find_scan
from tfos_magic.feed.trainer.spooled_rows import SpooledRows

ROWS = 900
Frame = Callable[[SparkSession, Path], DataFrame]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of several row groups: every type that is read in place, and some that are not."""
    path = tmp_path_factory.mktemp("scans")
    (path / "rows").mkdir()
    for number, ids in enumerate(np.array_split(np.arange(ROWS), 3)):
        pq.write_table(table(ids), path / "rows" / f"part-{number}.parquet", row_group_size=50)
    return path


def table(ids: Any) -> pa.Table:
    pixels = np.outer(ids, np.arange(1, 9)).astype(np.float32)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "Small": pa.array((ids % 100).astype(np.int8)),
            "flag": pa.array(ids % 3 == 0),
            "half": pa.array(ids / 2),
            "pixels": pa.array(list(pixels)),
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), 8),
            "text": pa.array([f"row {number % 7}" for number in ids], pa.large_string()),
            "raw": pa.array([str(number).encode() for number in ids]),
            "day": pa.array([datetime.date(2020, 1, 1)] * len(ids)),
            "with.dot": pa.array(ids * 2),
        }
    )


class TwoRanks:
    """Two receivers and their spools, for all feeds of the module."""

    def __init__(self) -> None:
        self._ranks = Ranks(2)
        self.close = self._ranks.close

    def feed(self, df: DataFrame) -> tuple[list[Any], list[pa.Table]]:
        """Feed ``df``; gives the partitions' sizes and every rank's rows in its order."""
        report, handles = self._ranks.feed(df)
        held = []
        for handle in handles:
            rows = SpooledRows(handle)
            held.append(pa.Table.from_batches([rows.read(rows.names, 0, int(rows.starts[-1]))]))
        return [(partition, size) for partition, _, size in report.partitions], held


@pytest.fixture(scope="module")
def ranks() -> Iterator[TwoRanks]:
    made = TwoRanks()
    yield made
    made.close()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Small, so that files are cut into splits and splits of several files share a partition.
    sizes = {"sql.files.maxPartitionBytes": "25000", "sql.files.openCostInBytes": "1000"}
    yield from sessions.local_session(2, **sizes)


@pytest.fixture
def jvm(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Call it to have Spark read all that this test feeds from then on."""
    yield lambda: spark.conf.set(SWITCH, "false")
    spark.conf.unset(SWITCH)


def whole(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.parquet(str(folder / "rows")).drop("day", "fixed")


def by_year(spark: SparkSession, folder: Path) -> DataFrame:
    target = str(folder / "by_year")
    whole(spark, folder).withColumn("year", F.col("id") % 3).write.partitionBy("year").mode("overwrite").parquet(target)
    return spark.read.parquet(target)


def evolved(spark: SparkSession, folder: Path) -> DataFrame:
    """The last file has int32 where the first has int64: only Spark knows how to make them one."""
    target = folder / "evolved"
    target.mkdir(exist_ok=True)
    for number, kind in enumerate([pa.int64(), pa.int64(), pa.int32()]):
        pq.write_table(pa.table({"id": pa.array(range(number * 99, number * 99 + 99), kind)}), target / f"{number}")
    return spark.read.schema("id long").parquet(str(target))


IN_PLACE: dict[str, Frame] = {
    "all columns": whole,
    "columns in another order, case and name, one of them twice": lambda spark, folder: whole(spark, folder).select(
        "raw", "PIXELS", "small", F.col("id").alias("half"), F.col("half").alias("id"), F.col("id").alias("twin")
    ),
    "names with dots and fixed lists of Arrow's": lambda spark, folder: spark.read.parquet(str(folder / "rows")).select(
        "fixed", "`with.dot`"
    ),
    "files of partitioned folders": lambda spark, folder: by_year(spark, folder).drop("year"),
    "a view": lambda spark, folder: viewed(whole(spark, folder)),
}
BY_SPARK: dict[str, Frame] = {
    "a filter": lambda spark, folder: whole(spark, folder).where("id > 100").select("id"),
    "a limit": lambda spark, folder: whole(spark, folder).limit(10).select("id"),
    "a computed column": lambda spark, folder: whole(spark, folder).select((F.col("id") + 1).alias("id")),
    "a sample": lambda spark, folder: whole(spark, folder).sample(0.5, 3).select("id"),
    "the name of a folder": lambda spark, folder: by_year(spark, folder).select("id", "year"),
    "a column about the file": lambda spark, folder: whole(spark, folder).select("id", "_metadata.file_size"),
    "a union": lambda spark, folder: whole(spark, folder).select("id").union(whole(spark, folder).select("id")),
    "another format": lambda spark, folder: as_orc(spark, folder),
    "options that leave files out": lambda spark, folder: (
        spark.read.option("ignoreCorruptFiles", True).parquet(str(folder / "rows")).select("id")
    ),
}


def viewed(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("rows_in_view")
    return df.sparkSession.sql("SELECT pixels, id AS number FROM rows_in_view")


def as_orc(spark: SparkSession, folder: Path) -> DataFrame:
    whole(spark, folder).select("id").write.mode("overwrite").orc(str(folder / "orc"))
    return spark.read.orc(str(folder / "orc"))


@pytest.mark.parametrize("name", IN_PLACE)
def test_files_read_in_place_give_every_rank_what_spark_would_give_it(
    spark: SparkSession, folder: Path, ranks: TwoRanks, jvm: Callable[[], None], name: str
) -> None:
    df = IN_PLACE[name](spark, folder)
    assert find_scan(df, df.columns) is not None
    partitions, held = ranks.feed(df)
    assert len(partitions) > 3
    assert sum(size for _, size in partitions) == ROWS
    jvm()
    assert find_scan(df, df.columns) is None
    assert (partitions, held) == ranks.feed(df)


@pytest.mark.parametrize("name", BY_SPARK)
def test_what_is_more_than_a_scan_is_read_by_spark(spark: SparkSession, folder: Path, name: str) -> None:
    df = BY_SPARK[name](spark, folder)
    assert find_scan(df, df.columns) is None


def test_a_cached_dataframe_is_read_from_the_cache(spark: SparkSession, folder: Path) -> None:
    df = whole(spark, folder).select("id")
    assert find_scan(df.select("id"), ["id"]) is not None
    df.cache()
    try:
        assert find_scan(df.select("id"), ["id"]) is None
    finally:
        df.unpersist()


def test_files_of_different_types_go_to_spark_after_a_look_at_them(
    spark: SparkSession, folder: Path, ranks: TwoRanks, jvm: Callable[[], None]
) -> None:
    df = evolved(spark, folder)
    assert find_scan(df, df.columns) is not None, "the driver looks at one file only"
    partitions, held = ranks.feed(df)
    assert sorted(np.concatenate([rank["id"].to_numpy() for rank in held])) == list(range(297))
    jvm()
    assert (partitions, held) == ranks.feed(df)


def test_types_whose_values_spark_may_change_are_read_by_spark(spark: SparkSession, folder: Path) -> None:
    df = spark.read.parquet(str(folder / "rows")).select("day", "id")
    assert find_scan(df, df.columns) is None
    assert find_scan(df.select("id"), ["id"]) is not None


@pytest.mark.soak
def test_a_file_that_changed_or_went_is_spark_s_to_complain_of(
    spark: SparkSession, folder: Path, ranks: TwoRanks, tmp_path: Path, jvm: Callable[[], None]
) -> None:
    for file in (folder / "rows").iterdir():
        shutil.copy(file, tmp_path)
    df = spark.read.parquet(str(tmp_path)).select("id")
    (tmp_path / "part-1.parquet").unlink()
    with pytest.raises(DataError) as told:
        ranks.feed(df)
    jvm()
    with pytest.raises(DataError) as by_spark:
        ranks.feed(df)
    assert "part-1.parquet" in str(told.value)
    assert str(told.value) == str(by_spark.value)


@pytest.mark.parametrize("place", ["a", "b"])
def test_nulls_end_in_the_same_error(
    spark: SparkSession, ranks: TwoRanks, tmp_path: Path, jvm: Callable[[], None], place: str
) -> None:
    rows = {"a": pa.array([1, None, 3]), "b": pa.array([[1.0], [None], [2.0]])}
    pq.write_table(pa.table(rows), tmp_path / "nulls.parquet")
    df = spark.read.parquet(str(tmp_path)).select(place)
    with pytest.raises(DataError, match="nulls") as told:
        ranks.feed(df)
    jvm()
    with pytest.raises(DataError) as by_spark:
        ranks.feed(df)
    assert str(told.value) == str(by_spark.value)


def test_a_damaged_file_is_named(spark: SparkSession, ranks: TwoRanks, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "part-0.parquet")
    df = spark.read.parquet(str(tmp_path))
    with (tmp_path / "part-0.parquet").open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 40)
    assert find_scan(df, df.columns) is not None
    with pytest.raises(DataError, match=r"part-0\.parquet cannot be read"):
        ranks.feed(df)


@pytest.mark.soak
def test_a_scan_in_place_reads_no_rows_in_the_jvm(
    spark: SparkSession, folder: Path, ranks: TwoRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("Spark was asked for the rows")

    monkeypatch.setattr(feed_job, "feed_partition", refuse)
    partitions, _ = ranks.feed(whole(spark, folder))
    assert sum(size for _, size in partitions) == ROWS
