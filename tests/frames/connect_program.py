"""Every kind of operation on a Connect session; prints what they gave as JSON on the last line."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tfos_magic.frames as tfs
from tfos_magic.errors import DataError, UsageError

LARGE = 1 << 18
"""Doubles, 2 MB of them: too much to go with every task."""


def total(x_input: Any) -> dict[str, Any]:
    return {"x": tf.reduce_sum(x_input, 0)}


def shifted(x: Any, by: Any) -> dict[str, Any]:
    return {"z": x + by[-1]}


def told(kind: type[Exception], call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    return ""


def main() -> None:
    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    frame = spark.range(0, 10, 1, 3).select(F.col("id").cast("double").alias("x"))
    parity = (F.col("x") % 2).alias("parity")
    pairs = tfs.analyze(frame.select(F.array("x", "x").alias("v")))
    nulls = frame.select(F.when(F.col("x") > 3, F.col("x")).alias("x"))
    said = {
        "map": [row.z for row in tfs.map_blocks(lambda x: {"z": x + 3}, frame).collect()],
        "large": [row.z for row in tfs.map_blocks(shifted, frame, constants={"by": np.full(LARGE, 7.0)}).collect()],
        "reduce": float(tfs.reduce_blocks(total, frame)),
        "aggregate": sorted(tuple(row) for row in tfs.aggregate(total, frame.groupBy(parity)).collect()),
        "shapes": tfs.explain(tfs.map_blocks(lambda v: {"w": v * 2}, pairs)),
        "rollup": told(UsageError, tfs.aggregate, total, frame.rollup(parity)),
        "nulls": told(DataError, tfs.reduce_blocks, total, nulls),
    }
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
