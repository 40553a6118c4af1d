"""Reductions by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tfos_magic.frames as tfs
from tfos_magic.errors import UsageError


def total(x_input: Any) -> dict[str, Any]:
    return {"x": tf.reduce_sum(x_input, axis=0)}


def test_sums_by_parity(spark: SparkSession) -> None:
    frame = spark.range(0, 4, 1, 3).select(F.col("id").cast("double").alias("x"))
    made = tfs.aggregate(total, frame.groupBy((F.col("x") % 2).alias("parity"))).orderBy("parity").collect()
    assert [tuple(row) for row in made] == [(0.0, 2.0), (1.0, 4.0)]


def test_a_key_that_hides_a_column_of_its_name_is_the_expression(spark: SparkSession) -> None:
    frame = spark.range(0, 6, 1, 2).select(F.col("id").alias("k"), F.lit(1.0).alias("x"))
    made = tfs.aggregate(total, frame.groupBy((F.col("k") % 2).alias("k"))).orderBy("k").collect()
    assert [tuple(row) for row in made] == [(0, 3.0), (1, 3.0)]


@pytest.mark.soak
def test_harmonic_and_geometric_means_by_group(spark: SparkSession) -> None:
    frame = spark.range(0, 60, 1, 4).select((F.col("id") % 3).alias("k"), (F.col("id") + 1.0).alias("x"))
    parts = tfs.map_blocks(lambda x: {"inverse": 1 / x, "log": tf.math.log(x), "n": tf.ones_like(x)}, frame)
    sums = tfs.aggregate(
        lambda inverse_input, log_input, n_input: {
            "inverse": tf.reduce_sum(inverse_input, 0),
            "log": tf.reduce_sum(log_input, 0),
            "n": tf.reduce_sum(n_input, 0),
        },
        parts.groupBy("k"),
    )
    means = tfs.map_blocks(lambda inverse, log, n: {"harmonic": n / inverse, "geometric": tf.exp(log / n)}, sums)
    for row in means.collect():
        x = np.arange(row.k, 60, 3) + 1.0
        assert row.harmonic == pytest.approx(len(x) / (1 / x).sum())
        assert row.geometric == pytest.approx(np.exp(np.log(x).mean()))


@pytest.mark.soak
def test_many_groups_of_vectors_agree_with_spark_in_any_partitioning(spark: SparkSession) -> None:
    frame = spark.range(0, 20_000, 1, 5).select(
        (F.col("id") * 7919 % 1000).alias("k"),
        F.when(F.col("id") % 3 > 0, F.concat(F.lit("s"), F.col("id") % 2)).alias("s"),
        F.array(F.col("id").cast("double"), F.lit(1.0)).alias("v"),
    )
    ours = tfs.aggregate(
        lambda sum_input, most_input: {"sum": tf.reduce_sum(sum_input, 0), "most": tf.reduce_max(most_input, 0)},
        frame.groupBy("k", "s"),
        feed_dict={"sum": "v", "most": "v"},
    )
    theirs = frame.groupBy("k", "s").agg(F.sum(F.col("v")[0]), F.count("*").cast("double"), F.max(F.col("v")[0]))
    made = {(row.k, row.s): (*row["sum"], row.most[0]) for row in ours.collect()}
    assert made == {(row[0], row[1]): tuple(row[2:]) for row in theirs.collect()}
    assert ours.count() == len(made) == 2000


@pytest.mark.soak
def test_zeros_of_both_signs_are_one_group(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(0.0, 1.0), (-0.0, 2.0), (float("nan"), 3.0), (float("nan"), 4.0)], "k double, x double"
    )
    assert sorted(row.x for row in tfs.aggregate(total, frame.groupBy("k")).collect()) == [3.0, 7.0]


@pytest.mark.soak
def test_an_empty_frame_has_no_groups(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "k int, x double")
    assert tfs.aggregate(total, frame.groupBy("k")).collect() == []


def test_what_cannot_be_aggregated_is_told(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 1.0, [1])], "k int, x double, a array<int>")
    for grouped, message in (
        (frame, "takes df.groupBy"),
        (frame.groupBy(), "without keys is one group: use reduce_blocks"),
        (frame.rollup("k"), "without rollup"),
        (frame.groupBy("a"), "groups by 'a' of type array<int>"),
        (frame.groupBy("x"), "'x' is the name of a group key"),
    ):
        with pytest.raises(UsageError, match=message):
            tfs.aggregate(total, grouped)
    with pytest.raises(UsageError, match="'x' as int32 from float64"):
        tfs.aggregate(lambda x_input: {"x": tf.size(x_input)}, frame.groupBy("k"))


def test_keys_whose_bytes_do_not_tell_which_are_the_same_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1.0), ("A", 2.0)], "k string, x double")
    with pytest.raises(UsageError, match="with the collation UTF8_LCASE"):
        tfs.aggregate(total, frame.groupBy(F.collate("k", "UTF8_LCASE").alias("k")))


def test_a_key_that_is_named_twice_is_told(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1.0)], "k string, x double")
    with pytest.raises(UsageError, match="groups by 'k' twice"):
        tfs.aggregate(total, frame.groupBy("k", "k"))
