"""TFRecord as a data source of a real session, both ways with TensorFlow's own reader and writer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from IPython.core.interactiveshell import InteractiveShell
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tfos_magic
from tests import sessions
from tfos_magic.tfrecord.data_source import PruningTFRecordSource, TFRecordSource

ROWS = 1000
SCHEMA = "id bigint, flag bigint, x array<float>, name string, raw binary, tags array<string>"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session to which loading the extension has given the format."""
    for session in sessions.local_session(2):
        shell = notebook(session)
        tfos_magic.load_ipython_extension(shell)
        yield session
        tfos_magic.unload_ipython_extension(shell)


def notebook(session: SparkSession) -> InteractiveShell:
    shell = InteractiveShell()
    shell.user_ns["spark"] = session
    return shell


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    number = F.col("id").cast("string")
    return spark.range(0, ROWS, 1, 2).select(
        "id",
        (F.col("id") % 2 == 0).alias("flag"),
        F.array(F.col("id") / 2, F.lit(1.0)).alias("x"),
        F.when(F.col("id") % 3 == 0, F.concat(F.lit("é"), number)).alias("name"),
        F.unhex(F.lit("ff00")).alias("raw"),
        F.array_repeat(number, (F.col("id") % 3).cast("int")).alias("tags"),
    )


@pytest.fixture(scope="module")
def written(frame: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfrecord") / "out"
    frame.write.format("tfrecord").mode("append").save(str(folder))
    return folder


def parts(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("part-*"))


def read(spark: SparkSession, path: Path | str, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.read.format("tfrecord").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(path))


def test_tensorflow_reads_every_row_and_value_that_spark_wrote(written: Path) -> None:
    spec = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "flag": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([2], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "raw": tf.io.FixedLenFeature([], tf.string),
        "tags": tf.io.VarLenFeature(tf.string),
    }
    assert len(parts(written)) == 2
    dataset = tf.data.TFRecordDataset(parts(written)).batch(ROWS).map(lambda batch: tf.io.parse_example(batch, spec))
    (batch,) = list(dataset)
    assert batch["id"].numpy().tolist() == list(range(ROWS))
    assert batch["flag"].numpy().tolist() == [1 - i % 2 for i in range(ROWS)]
    assert batch["x"].numpy().tolist() == [[i / 2, 1.0] for i in range(ROWS)]
    assert batch["name"].numpy().tolist() == [b"" if i % 3 else f"é{i}".encode() for i in range(ROWS)]
    assert set(batch["raw"].numpy().tolist()) == {b"\xff\x00"}
    assert tf.RaggedTensor.from_sparse(batch["tags"]).to_list() == [[b"%d" % i] * (i % 3) for i in range(ROWS)]


def test_spark_reads_back_what_it_wrote_with_an_inferred_schema(spark: SparkSession, written: Path) -> None:
    found = read(spark, written)
    assert dict(found.dtypes) == dict(field.split() for field in SCHEMA.split(", "))
    rows = found.orderBy("id").collect()
    assert [row.id for row in rows] == list(range(ROWS))
    assert rows[6].asDict() == {
        "id": 6,
        "flag": 1,
        "x": [3.0, 1.0],
        "name": "é6",
        "raw": bytearray(b"\xff\x00"),
        "tags": [],
    }
    assert (rows[1].name, rows[1].tags) == (None, ["1"])


def test_spark_reads_what_tensorflow_wrote(spark: SparkSession, tmp_path: Path) -> None:
    def record(i: int) -> bytes:
        one = tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))
        word = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"w%d" % i] * (i % 2 + 1)))
        return tf.train.SequenceExample(
            context=tf.train.Features(feature={"id": one}),
            feature_lists=tf.train.FeatureLists(feature_list={"words": tf.train.FeatureList(feature=[word] * (i % 3))}),
        ).SerializeToString()

    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord.gz"), "GZIP") as writer:
        for i in range(100):
            writer.write(record(i))
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    found = read(spark, f"file://{tmp_path}", recordType="SequenceExample")
    assert dict(found.dtypes) == {"id": "bigint", "words": "array<array<string>>"}
    rows = found.orderBy("id").collect()
    assert [row.id for row in rows] == list(range(100))
    assert rows[5].words == [["w5", "w5"]] * 2
    assert read(spark, tmp_path, recordType="ByteArray").orderBy("byteArray").first()[0] == min(map(record, range(100)))


def test_overwriting_replaces_and_appending_adds(spark: SparkSession, frame: DataFrame, tmp_path: Path) -> None:
    few, out, files = frame.where("id < 10").select("id"), tmp_path / "out", []
    for mode in ("append", "append", "overwrite"):
        few.write.format("tfrecord").mode(mode).option("compressionType", "gzip").save(str(out))
        files.append([Path(name).suffix for name in parts(out)])
    assert files == [[".gz"], [".gz", ".gz"], [".gz"]]  # of two tasks only one has rows
    assert read(spark, out, "id bigint").count() == 10
    assert sorted(os.listdir(out))[0] == "_SUCCESS"
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        few.write.format("tfrecord").save(str(out))


def test_a_task_that_fails_leaves_the_folder_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    spark.range(10).write.format("tfrecord").mode("append").save(str(out))
    before = sorted(os.listdir(out))
    bad = spark.range(0, 10, 1, 2).select(F.when(F.col("id") == 9, F.array(F.lit(None).cast("int"))).alias("a"))
    with pytest.raises(PySparkException, match="nulls inside its arrays"):
        bad.write.format("tfrecord").mode("overwrite").save(str(out))
    assert sorted(os.listdir(out)) == before


def test_types_that_no_record_holds_are_refused_before_any_task_runs(spark: SparkSession, tmp_path: Path) -> None:
    money = spark.range(1).select(F.col("id").cast("decimal(9,2)").alias("price"))
    with pytest.raises(AnalysisException, match=r"'price' is decimal.*cast"):
        money.write.format("tfrecord").mode("append").save(str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_corrupt_file_fails_with_its_name_and_byte_or_is_cut_short(
    spark: SparkSession, written: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.tfrecord"
    data = bytearray(Path(parts(written)[0]).read_bytes())
    data[-1] ^= 1
    bad.write_bytes(data)
    with pytest.raises(PySparkException, match=rf"byte \d+ of {bad} is corrupt"):
        read(spark, bad, "id bigint").count()
    assert read(spark, bad, "id bigint", mode="permissive").count() == ROWS // 2 - 1


def test_files_are_chosen_by_glob_and_option_and_small_ones_share_a_task(spark: SparkSession, written: Path) -> None:
    one, two = parts(written)
    assert read(spark, written, "id bigint").rdd.getNumPartitions() == 1
    assert read(spark, written, "id bigint", maxPartitionBytes="1000").rdd.getNumPartitions() == 2
    assert read(spark, f"{written}/part-00000*", "id bigint").count() == ROWS // 2
    assert read(spark, written, "id bigint", pathGlobFilter=Path(two).name).first().id == ROWS // 2
    both = spark.read.format("tfrecord").schema("id bigint").load([one, two])
    assert both.count() == ROWS


def test_registering_again_changes_nothing(
    spark: SparkSession, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tfos_magic.register_tfrecord(spark)
    shell = notebook(spark)
    tfos_magic.load_ipython_extension(shell)
    tfos_magic.unload_ipython_extension(shell)
    assert capsys.readouterr().out == ""
    assert read(spark, written, "id bigint").schema.names == ["id"]


@pytest.fixture(scope="module")
def by_day(frame: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten rows in each of day=1 to day=3, and of the unknown day."""
    folder = tmp_path_factory.mktemp("tfrecord") / "days"
    for place, first in (("day=1/at=a%20b", 0), ("day=2/at=c", 10), ("day=3/at=c", 20), (f"{UNKNOWN}/at=c", 30)):
        rows = frame.where(f"id >= {first} and id < {first + 10}").select("id").coalesce(1)
        rows.write.format("tfrecord").mode("append").save(f"{folder}/{place}")
    return folder


UNKNOWN = "day=__HIVE_DEFAULT_PARTITION__"


def test_folders_are_columns(spark: SparkSession, by_day: Path) -> None:
    read = spark.read.format("tfrecord").load(str(by_day))
    assert dict(read.dtypes) == {"id": "bigint", "day": "int", "at": "string"}
    rows = read.orderBy("id").collect()
    assert [row.id for row in rows] == list(range(40))
    assert [row.day for row in rows] == [1] * 10 + [2] * 10 + [3] * 10 + [None] * 10
    assert [row["at"] for row in rows] == ["a b"] * 10 + ["c"] * 30
    given = spark.read.format("tfrecord").schema("day string, id bigint").load(str(by_day)).orderBy("id").first()
    assert given is not None
    assert (given.day, given.id) == ("1", 0)
    with pytest.raises(PySparkException, match="at=a b, which cannot be read as int32: declare 'at' as string"):
        spark.read.format("tfrecord").schema("at int, id bigint").load(str(by_day)).collect()


@pytest.mark.soak
def test_conditions_on_folders_leave_files_unread(spark: SparkSession, by_day: Path, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(PruningTFRecordSource)
        broken = by_day / "day=2" / "at=c" / "part-broken.tfrecord"
        broken.write_bytes(b"no record at all")
        read = spark.read.format("tfrecord").schema("id bigint, day int, at string").load(str(by_day))
        assert sorted(row.id for row in read.where("day = 3").collect()) == list(range(20, 30))
        assert sorted(row.id for row in read.where("day in (1, 3) and id > 5").collect()) == [
            *range(6, 10),
            *range(20, 30),
        ]
        assert read.where("day is null").count() == 10
        assert read.where("day < 2 and at = 'a b'").count() == 10
        with pytest.raises(PySparkException, match="corrupt"):
            read.where("day <= 2").count()
        broken.unlink()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.dataSource.register(TFRecordSource)


def test_files_in_folders_of_different_kinds_are_refused(spark: SparkSession, by_day: Path, tmp_path: Path) -> None:
    for place in ("day=1", "month=2"):
        (tmp_path / place).mkdir()
        shutil.copy(next((by_day / "day=2" / "at=c").glob("part-*")), tmp_path / place)
    with pytest.raises(PySparkException, match=r"lies in folders of \['day'\] and .* of \['month'\]"):
        spark.read.format("tfrecord").load(str(tmp_path))
