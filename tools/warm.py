"""Train once as the tutorials do, and keep what is slow the first time: part of the image that Binder builds.

Usage: ``python tools/warm.py ARCHIVE``. Spark's JVM writes the classes that it loaded to ``ARCHIVE`` when it ends; a
later one with the same options maps them instead of parsing them anew (JEP 350, dynamic archives).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from tfos_magic import TFCluster
from tfos_magic.spark.session import make_local_session

END_SECONDS = 120
ROWS = 256
CELL = """
import keras
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(train, epochs=2)
"""


def main(arguments: list[str]) -> int:
    archive = Path(arguments[0])
    archive.parent.mkdir(parents=True, exist_ok=True)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    quiet = "-Xlog:cds=off -Xlog:cds+dynamic=off"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} -XX:ArchiveClassesAtExit={archive} {quiet}"
    with tempfile.TemporaryDirectory() as folder:
        train_once(Path(folder))
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
    return 0


def train_once(folder: Path) -> None:
    """Write a file, split and look at it, train on it; return when the JVM has ended."""
    random = np.random.default_rng(0)
    rows = pd.DataFrame({"x": list(random.random((ROWS, 8), "float32")), "y": random.integers(0, 2, ROWS)})
    spark = make_local_session(2)
    spark.createDataFrame(rows).write.parquet(str(folder / "rows"))
    train, rest = spark.read.parquet(str(folder / "rows")).randomSplit([0.8, 0.2], seed=1)
    rest.groupBy("y").count().orderBy("y").toPandas()
    with TFCluster(spark, workers=1) as cluster:
        cluster.run(CELL, frames={"train": train}, label="y", batch_size=64, outputs=["model"])
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(END_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
