"""Maps and aggregates of tfos_magic.frames beside pandas UDFs and Spark SQL's own expressions, in turns.

Three pieces of work in one session: a polynomial and a sine of scalars; the Euclidean length of 784-vectors of float32;
sums over 1,000 groups. All data lie in Spark's memory; each result is summed by Spark, and the sums must agree.

    python benchmarks/frames.py [--scalars 4000000] [--vectors 40000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sessions import CORES, local_session
from turns import Turn, processor, ratio, take_turns, wall

import tfos_magic.frames as tfs

GROUPS = 1000
PIXELS = 784
SMALL = 20_000
OURS = "tfos_magic.frames"
Rivals = dict[str, Callable[[], float]]


def total(frame: DataFrame, column: str) -> float:
    return float(frame.agg(F.sum(column)).first()[0])


def scalars(frame: DataFrame) -> Rivals:
    """sin(x) (x^3 + 2 x^2 + 3 x + 4)."""

    @F.pandas_udf("double")
    def by_pandas(x: pd.Series) -> pd.Series:
        return np.sin(x) * (((x + 2) * x + 3) * x + 4)

    x = F.col("x")
    ours = tfs.map_blocks(lambda x: {"z": tf.sin(x) * (((x + 2) * x + 3) * x + 4)}, frame.select("x"), trim=True)
    return {
        "Spark SQL": lambda: total(frame.select((F.sin(x) * (((x + 2) * x + 3) * x + 4)).alias("z")), "z"),
        "pandas_udf": lambda: total(frame.select(by_pandas("x").alias("z")), "z"),
        OURS: lambda: total(ours, "z"),
    }


def vectors(frame: DataFrame) -> Rivals:
    """The length of each vector."""

    @F.pandas_udf("double")
    def by_pandas(v: pd.Series) -> pd.Series:
        return pd.Series(np.sqrt(np.square(np.stack(v.to_numpy()).astype(np.float64)).sum(axis=1)))

    def length(v: Any) -> dict[str, Any]:
        return {"z": tf.sqrt(tf.reduce_sum(tf.square(tf.cast(v, tf.float64)), axis=1))}

    squares = F.aggregate("v", F.lit(0.0), lambda acc, x: acc + x.cast("double") * x.cast("double"))
    known = tfs.append_shape(frame, "v", [PIXELS])
    return {
        "Spark SQL": lambda: total(frame.select(F.sqrt(squares).alias("z")), "z"),
        "pandas_udf": lambda: total(frame.select(by_pandas("v").alias("z")), "z"),
        OURS: lambda: total(tfs.map_blocks(length, known, trim=True), "z"),
    }


def groups(frame: DataFrame) -> Rivals:
    """The sum of each group, and its weighted sum over groups."""

    @F.pandas_udf("double")
    def by_pandas(x: pd.Series) -> float:
        return float(x.sum())

    grouped = frame.groupBy("k")
    ours = tfs.aggregate(lambda x_input: {"x": tf.reduce_sum(x_input, 0)}, grouped)

    def weighted(sums: DataFrame) -> float:
        return total(sums.select((F.col("x") * F.col("k")).alias("z")), "z")

    return {
        "Spark SQL": lambda: weighted(grouped.agg(F.sum("x").alias("x"))),
        "pandas_udf": lambda: weighted(grouped.agg(by_pandas("x").alias("x"))),
        OURS: lambda: weighted(ours),
    }


def show(title: str, rows: int, taken: dict[str, list[Turn]]) -> bool:
    """Print one table; True when the sums agree."""
    print(f"\n{title}: {rows:,} rows, medians of {len(taken[OURS])} rounds")
    print(f"{'':20}{'seconds':>9}{'processor s':>13}{'rows/s':>14}{'/ ours, clock':>15}{'/ ours, processor':>19}")
    for name, turns in taken.items():
        by_clock, by_processor = ratio(turns, taken[OURS])
        pace = f"{rows / wall(turns):14,.0f}{by_clock:15.2f}{by_processor:19.2f}"
        print(f"{name:20}{wall(turns):9.2f}{processor(turns):13.2f}{pace}", flush=True)
    values = [turns[0].value for turns in taken.values()]
    return max(values) - min(values) <= 1e-9 * max(map(abs, values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalars", type=int, default=4_000_000)
    parser.add_argument("--vectors", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    spark = local_session(driver__memory="2g", sql__shuffle__partitions=str(CORES))
    numbers = spark.range(0, options.scalars, 1, CORES).select((F.col("id") % GROUPS).alias("k"), F.rand(1).alias("x"))
    # One draw to a row, spread over its pixels: what the values are does not matter, drawing them takes long.
    pixels = F.transform(F.sequence(F.lit(1), F.lit(PIXELS)), lambda i: (i * F.col("r") % 1.0).cast("float"))
    images = spark.range(0, options.vectors, 1, CORES).select(F.rand(2).alias("r")).select(pixels.alias("v"))
    agree = []
    for title, frame, work in (
        ("map_blocks on scalars", numbers, scalars),
        (f"map_blocks on {PIXELS}-vectors", images, vectors),
        (f"aggregate over {GROUPS:,} groups", numbers, groups),
    ):
        frame = frame.cache()
        rows = frame.count()
        few = frame.limit(SMALL).repartition(CORES).cache()
        agree.append(show(title, rows, take_turns(work(frame), options.rounds, work(few))))
        frame.unpersist()
    spark.stop()
    if not all(agree):
        sys.exit("the sums differ by more than 1e-9")


if __name__ == "__main__":
    main()
