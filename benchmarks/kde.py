"""Kernel density score, the example of the TensorFrames talk (Spark Summit 2016): ours beside Scala and pandas UDFs.

    score(x) = m - log(b N) + log sum exp(d_i - m),  d_i = -(x - z_i)^2 / 2 b^2,  m = max d_i

with b = 0.5 and N = 1,000 points, summed over all samples, float64 where nothing else is said. All rivals run in one
session on two cores, in turns. The Scala functions are compiled with the compiler that comes with pyspark.

    python benchmarks/kde.py [--samples 2000000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyspark
import tensorflow as tf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sessions import CORES, local_session
from turns import Turn, processor, ratio, take_turns, wall

import tfos_magic.frames as tfs

WIDTH = 0.5
POINTS = 1000
BLOCK = 1024
SMALL = 20_000
OURS = "map_blocks, float64"
AIMS = {"Scala UDF, optimised": 2.2, "Scala UDF": 10.0}


def score(x: Any, points: Any) -> dict[str, Any]:
    """The score of a block, points along the first axis: sums over it need no order that XLA may not change."""
    d = -tf.square(x[tf.newaxis, :] - points[:, tf.newaxis]) / (2 * WIDTH * WIDTH)
    m = tf.reduce_max(d, axis=0)
    total = tf.reduce_sum(tf.exp(d - m[tf.newaxis, :]), axis=0)
    return {"score": m - tf.math.log(tf.cast(WIDTH * POINTS, x.dtype)) + tf.math.log(total)}


def score_in_float32(x: Any, points: Any) -> dict[str, Any]:
    return {"score": tf.cast(score(tf.cast(x, tf.float32), points)["score"], tf.float64)}


def numpy_score(x: Any, points: Any) -> Any:
    """The same by NumPy, in blocks that fit the cache."""
    made = np.empty(len(x))
    for start in range(0, len(x), BLOCK):
        d = -np.square(x[start : start + BLOCK, np.newaxis] - points) / (2 * WIDTH * WIDTH)
        m = d.max(axis=1)
        made[start : start + BLOCK] = m - np.log(WIDTH * POINTS) + np.log(np.exp(d - m[:, np.newaxis]).sum(axis=1))
    return made


def rivals_over(spark: SparkSession, samples: DataFrame, points: Any, view: str) -> dict[str, Callable[[], float]]:
    """What to measure: each gives the sum of the scores. To SQL the samples are known as ``view``."""
    samples.createOrReplaceTempView(view)

    @F.pandas_udf("double")
    def by_numpy(x: pd.Series) -> pd.Series:
        return pd.Series(numpy_score(x.to_numpy(), points))

    def by_frames(function: Any, points: Any) -> float:
        scored = tfs.map_blocks(function, samples, trim=True, constants={"points": points})
        return float(scored.agg(F.sum("score")).first()[0])

    def by_sql(name: str) -> float:
        return float(spark.sql(f"select sum({name}(x)) from {view}").first()[0])

    return {
        "Scala UDF": functools.partial(by_sql, "kde_plain"),
        "Scala UDF, optimised": functools.partial(by_sql, "kde_optimised"),
        "pandas UDF, NumPy": lambda: float(samples.agg(F.sum(by_numpy("x"))).first()[0]),
        OURS: functools.partial(by_frames, score, points),
        "map_blocks, float32": functools.partial(by_frames, score_in_float32, points.astype(np.float32)),
    }


def compile_scala(folder: Path) -> None:
    """Compile the Scala rivals into ``folder``."""
    jars = Path(pyspark.__file__).parent / "jars"
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    source = Path(__file__).with_name("Kde.scala")
    command = [str(java), "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp", "-d", str(folder)]
    subprocess.run([*command, str(source)], check=True, timeout=300)


def prepare(spark: SparkSession, count: int) -> tuple[DataFrame, Any]:
    """Samples in Spark's memory and points, the same in every run; the Scala functions registered."""
    points = np.random.default_rng(0).normal(size=POINTS)
    given = spark.sparkContext._gateway.new_array(spark._jvm.double, POINTS)
    for i, point in enumerate(points):
        given[i] = float(point)
    spark._jvm.Kde.register(spark._jsparkSession, given)
    samples = spark.range(0, count, 1, CORES).select(F.randn(7).alias("x")).cache()
    samples.count()
    return samples, points


def show(taken: dict[str, list[Turn]], count: int) -> bool:
    """Print the table and the ratios; True when all float64 sums agree."""
    work = count * POINTS
    print(f"{count:,} samples, {POINTS:,} points, local[{CORES}]; medians of {len(taken[OURS])} rounds\n")
    print(f"{'':24}{'seconds':>9}{'processor s':>13}{'ns/exp':>8}{'ns/exp/core':>13}{'sum of scores':>24}")
    for name, turns in taken.items():
        per_exp = f"{wall(turns) / work * 1e9:8.2f}{processor(turns) / work * 1e9:13.2f}"
        print(f"{name:24}{wall(turns):9.2f}{processor(turns):13.2f}{per_exp}{turns[0].value:24.9f}")
    print()
    for name, turns in taken.items():
        if name != OURS:
            by_clock, by_processor = ratio(turns, taken[OURS])
            aim = f" (aim: at least {AIMS[name]})" if name in AIMS else ""
            print(f"{name} / {OURS}: {by_clock:.2f} by the clock, {by_processor:.2f} by processor time{aim}")
    expected = taken["Scala UDF, optimised"][0].value
    errors = {name: abs(turns[0].value / expected - 1) for name, turns in taken.items()}
    print(
        "\nrelative to the optimised Scala sum: " + ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
    )
    return all(error < 1e-9 for name, error in errors.items() if "float32" not in name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tfos-benchmark-") as folder:
        compile_scala(Path(folder))
        spark = local_session(driver__extraClassPath=folder)
        samples, points = prepare(spark, options.samples)
        few = samples.limit(SMALL).repartition(CORES).cache()
        rivals, small = (rivals_over(spark, *each) for each in ((samples, points, "samples"), (few, points, "few")))
        taken = take_turns(rivals, options.rounds, small)
        spark.stop()
    if not show(taken, options.samples):
        sys.exit("the float64 sums differ by more than 1e-9")


if __name__ == "__main__":
    main()
