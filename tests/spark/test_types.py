"""Every type that Spark can give, from a DataFrame through real tasks and receivers to the tensors of all ranks."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.spark.ranks import Ranks
from tfos_magic.columns.missing import NOTHING_MISSING, Missing
from tfos_magic.columns.selection import Selection
from tfos_magic.errors import DataError
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset
from tfos_magic.transport.messages import SpoolHandle

ROWS = 23
EPOCH = datetime.datetime(1970, 1, 1)
ZONE = "America/New_York"


@pytest.fixture(scope="module")
def spark(local_session: SparkSession) -> SparkSession:
    """The session, with a time zone far from UTC and Arrow batches smaller than partitions."""
    local_session.conf.set("spark.sql.session.timeZone", ZONE)
    local_session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3")
    return local_session


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks(2)
    yield made
    made.close()


SCHEMA = """
    id long, tiny tinyint, small smallint, price decimal(18,2), day date, at timestamp, here timestamp_ntz,
    span interval day to second, code string, days array<date>, flags array<boolean>, words array<string>,
    grid array<array<float>>, bag array<int>, phrases array<string>, nest array<array<bigint>>, pairs array<array<int>>,
    who struct<name: string, `has.dot`: struct<size: double, marks: array<short>>>
"""


def row(i: int) -> dict[str, Any]:
    """Values of every type, all of them different from row to row."""
    return {
        "id": i,
        "tiny": i - 10,
        "small": -i * 1000,
        "price": Decimal(i * 7919 + 1).scaleb(-2),
        "day": datetime.date(1969, 12, 25) + datetime.timedelta(days=i),
        "at": datetime.datetime(2024, 3, 10, 1, 30, 0, i) + datetime.timedelta(hours=i),
        "here": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_990) + datetime.timedelta(microseconds=i),
        "span": datetime.timedelta(seconds=i, microseconds=5),
        "code": f"{i:03}",
        "days": [datetime.date(1970, 1, 1 + i), datetime.date(1971, 1, 1)],
        "flags": [i % 2 == 0, i % 3 == 0],
        "words": [f"wört {i}", ""],
        "grid": [[i + 0.5, 1.0, 2.0], [3.0, 4.0, float(-i)]],
        "bag": list(range(i % 4)),
        "phrases": [f"{i}.{k}" for k in range(i % 3)],
        "nest": [[i] * k for k in range(i % 4)],
        "pairs": [[i, k] for k in range(1 + i % 3)],
        "who": {"name": f"n{i}", "has.dot": {"size": i / 3, "marks": [i] * (i % 2)}},
    }


def batches(ranks: Ranks, df: DataFrame, missing: Missing = NOTHING_MISSING) -> list[dict[str, Any]]:
    """All rows of each rank as one batch, after a look that both ranks have the same structure and shapes."""
    return whole(ranks.feed(df, missing=missing)[1])


def whole(handles: list[SpoolHandle]) -> list[dict[str, Any]]:
    """All rows of each rank as one batch, as :func:`batches` gives them."""
    datasets = [feed_dataset(handle, batch_size=1000) for handle in handles]
    first, other = (tf.nest.map_structure(_open_ended, dataset.element_spec) for dataset in datasets)
    assert first == other
    return [next(iter(dataset)) for dataset in datasets]


def _open_ended(spec: Any) -> Any:
    """A spec without its number of rows, of which ranks have one more or less."""
    return spec.dtype, spec.shape[1:].as_list(), getattr(spec, "ragged_rank", 0)


def values(tensor: Any) -> list[Any]:
    """A tensor as Python lists, whether it is ragged or dense."""
    return list(tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist())


def by_id(given: list[dict[str, Any]], name: str) -> list[Any]:
    """The values of a column over all ranks in the order of ids."""
    pairs = [pair for batch in given for pair in zip(values(batch["id"]), values(batch[name]), strict=True)]
    return [value for _, value in sorted(pairs, key=lambda pair: pair[0])]


@pytest.fixture(scope="module")
def handles(spark: SparkSession, ranks: Ranks) -> list[SpoolHandle]:
    rows = [row(i) for i in range(ROWS)]
    return list(ranks.feed(spark.createDataFrame(rows, SCHEMA).repartition(3))[1])


@pytest.fixture(scope="module")
def fed(handles: list[SpoolHandle]) -> list[dict[str, Any]]:
    return whole(handles)


@pytest.mark.parametrize("name", ["id", "tiny", "small", "flags", "grid", "bag", "nest", "pairs"])
def test_numbers_and_arrays_of_numbers_arrive_as_they_were(fed: list[dict[str, Any]], name: str) -> None:
    assert by_id(fed, name) == [row(i)[name] for i in range(ROWS)]


@pytest.mark.parametrize("name", ["code", "words", "phrases"])
def test_strings_and_arrays_of_strings_arrive_as_bytes(fed: list[dict[str, Any]], name: str) -> None:
    expected = [row(i)[name] for i in range(ROWS)]
    assert by_id(fed, name) == tf.nest.map_structure(str.encode, expected)


def test_decimals_are_the_floats_nearest_to_them(fed: list[dict[str, Any]]) -> None:
    assert by_id(fed, "price") == [float(row(i)["price"]) for i in range(ROWS)]


def test_dates_and_times_count_from_the_epoch(fed: list[dict[str, Any]], spark: SparkSession) -> None:
    def days(day: datetime.date) -> int:
        return (day - EPOCH.date()).days

    def microseconds(span: datetime.timedelta) -> int:
        return span // datetime.timedelta(microseconds=1)

    rows = [row(i) for i in range(ROWS)]
    assert by_id(fed, "day") == [days(each["day"]) for each in rows]
    assert by_id(fed, "days") == [[days(day) for day in each["days"]] for each in rows]
    assert by_id(fed, "here") == [microseconds(each["here"] - EPOCH) for each in rows]
    assert by_id(fed, "span") == [microseconds(each["span"]) for each in rows]
    at = spark.createDataFrame([(each["at"],) for each in rows], "at timestamp").select(F.unix_micros("at"))
    assert by_id(fed, "at") == [micros for (micros,) in at.collect()]


def test_structs_become_dicts_at_any_depth(fed: list[dict[str, Any]]) -> None:
    who = [{"id": batch["id"], **batch["who"], **batch["who"]["has.dot"]} for batch in fed]
    assert list(fed[0]["who"]) == ["name", "has.dot"]
    assert by_id(who, "name") == [f"n{i}".encode() for i in range(ROWS)]
    assert by_id(who, "size") == [i / 3 for i in range(ROWS)]
    assert by_id(who, "marks") == [[i] * (i % 2) for i in range(ROWS)]


def test_arrays_of_one_length_are_dense_and_others_ragged_where_they_differ(fed: list[dict[str, Any]]) -> None:
    batch = fed[0]
    count = len(batch["id"])
    assert batch["grid"].shape == (count, 2, 3)
    assert batch["grid"].dtype == tf.float32
    assert batch["words"].shape == (count, 2)
    kinds = {name: (batch[name].shape.as_list(), batch[name].ragged_rank) for name in ("bag", "nest", "pairs")}
    assert kinds == {"bag": ([count, None], 1), "nest": ([count, None, None], 2), "pairs": ([count, None, 2], 1)}


def test_shuffled_rows_stay_together_whatever_their_columns_are(handles: list[SpoolHandle]) -> None:
    for handle in handles:
        parts = list(feed_dataset(handle, batch_size=8, shuffle=True, seed=1))
        names = [name for name in parts[0] if name != "who"]
        expected = {row(i)["id"]: row(i) for i in range(ROWS)}
        numbers = [i for part in parts for i in values(part["id"])]
        assert numbers != sorted(numbers)
        (plain,) = feed_dataset(handle, batch_size=1000)
        for name in names:
            given = dict(zip(values(plain["id"]), values(plain[name]), strict=True))
            assert [value for part in parts for value in values(part[name])] == [given[i] for i in numbers]
        marks = [value for part in parts for value in values(part["who"]["has.dot"]["marks"])]
        assert marks == [expected[i]["who"]["has.dot"]["marks"] for i in numbers]


def test_vectors_dense_and_sparse_arrive_as_rows_of_float64(spark: SparkSession, ranks: Ranks) -> None:
    def vector(i: int) -> Any:
        return Vectors.dense([i, 0.0, -i]) if i % 3 else Vectors.sparse(3, {1: float(i)})

    def varying(i: int) -> Any:
        return Vectors.dense([i] * (1 + i % 2)) if i % 5 else Vectors.sparse(4, {3: 1.0})

    schema = T.StructType().add("id", "long").add("v", VectorUDT()).add("w", VectorUDT())
    df = spark.createDataFrame([(i, vector(i), varying(i)) for i in range(ROWS)], schema).repartition(3)
    given = batches(ranks, df)
    assert by_id(given, "v") == [vector(i).toArray().tolist() for i in range(ROWS)]
    assert by_id(given, "w") == [varying(i).toArray().tolist() for i in range(ROWS)]
    assert given[0]["v"].dtype == tf.float64
    assert given[0]["v"].shape[1:] == (3,)


def test_partitions_each_of_one_length_are_ragged_together_on_every_rank(spark: SparkSession, ranks: Ranks) -> None:
    df = spark.range(0, 4, 1, 2).withColumn("x", F.array_repeat("id", F.when(F.col("id") < 2, 3).otherwise(5)))
    given = batches(ranks, df)
    assert by_id(given, "x") == [[0] * 3, [1] * 3, [2] * 5, [3] * 5]
    assert all(isinstance(batch["x"], tf.RaggedTensor) for batch in given)


def test_padded_arrays_are_as_long_on_every_rank_as_the_longest_of_all(spark: SparkSession, ranks: Ranks) -> None:
    df = spark.range(0, 5, 1, 2).withColumn("x", F.array_repeat("id", F.col("id").cast("int") + 1))
    df = df.withColumn("y", F.array_repeat(F.array_repeat(F.lit("a"), 2), F.col("id").cast("int")))
    given = batches(ranks, df, Missing.of(pad=["x=-1", "y=end:5x3"]))
    assert by_id(given, "x") == [[i] * (i + 1) + [-1] * (4 - i) for i in range(5)]
    assert by_id(given, "y")[1] == [[b"a", b"a", b"end"], *[[b"end"] * 3] * 4]
    assert {tuple(batch["y"].shape[1:]) for batch in given} == {(5, 3)}
    with pytest.raises(DataError, match="'x' has an array of 5 values, and --pad makes them 4 long"):
        ranks.feed(df, missing=Missing.of(pad="0:4"), features=["x"])


def test_nulls_are_filled_and_masked_as_asked(spark: SparkSession, ranks: Ranks) -> None:
    there = F.col("id") % 3 != 0
    df = spark.range(0, 9, 1, 2).select(
        "id",
        F.when(there, F.col("id")).alias("n"),
        F.when(there, F.col("id").cast("string")).alias("s"),
        F.when(there, F.array(F.col("id"), F.lit(None))).alias("a"),
        F.when(there, F.struct(F.col("id").alias("f"), F.lit(None).cast("string").alias("g"))).alias("t"),
        F.when(there, F.col("id").cast("double")).alias("m"),
    )
    given = batches(ranks, df, Missing.of(fill=["-1", "s=none", "t.g=?", "a=8"], null_mask=["m", "n"]))
    here = [i % 3 != 0 for i in range(9)]
    assert by_id(given, "n") == [i if yes else -1 for i, yes in enumerate(here)]
    assert by_id(given, "s") == [b"%d" % i if yes else b"none" for i, yes in enumerate(here)]
    assert by_id(given, "a") == [[i, 8] if yes else [8, 8] for i, yes in enumerate(here)]
    assert by_id(given, "m") == [float(i) if yes else -1.0 for i, yes in enumerate(here)]
    assert by_id(given, "m_mask") == by_id(given, "n_mask") == here
    assert list(given[0]) == ["id", "n", "n_mask", "s", "a", "t", "m", "m_mask"]
    inner = [{"id": batch["id"], **batch["t"]} for batch in given]
    assert by_id(inner, "f") == [i if yes else -1 for i, yes in enumerate(here)]
    assert by_id(inner, "g") == [b"?"] * 9
    with pytest.raises(DataError, match=r"column 't\.g' has nulls .*--fill t\.g=VALUE"):
        ranks.feed(df, features=["t"], missing=Missing.of(fill="t.f=0"))


@pytest.mark.soak
def test_encoded_images_are_decoded_by_a_map_over_the_batches(spark: SparkSession, ranks: Ranks) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 4, 5, 3), np.uint8)
    encoded = [bytes(tf.io.encode_png(image).numpy()) for image in pixels]
    df = spark.createDataFrame([(i, png) for i, png in enumerate(encoded)], "id int, png binary")
    _, handles = ranks.feed(df, label="id")
    seen = {}
    for handle in handles:
        train = feed_dataset(handle, batch_size=2, selection=Selection(label="id"))
        image = tf.TensorSpec((4, 5, 3), tf.uint8)
        train = train.map(lambda x, y, image=image: (tf.map_fn(tf.io.decode_png, x, fn_output_signature=image), y))
        assert train.element_spec[0].shape[1:] == (4, 5, 3)
        for images, numbers in train.as_numpy_iterator():
            seen.update(zip(numbers.tolist(), images, strict=True))
    np.testing.assert_array_equal([seen[i] for i in range(7)], pixels)
