"""The Spark session that benchmarks share: two slots of this machine, quiet."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

CORES = 2


def local_session(slots: int = CORES, **settings: str) -> SparkSession:
    """A session on ``slots`` with this very Python; ``settings`` are those of Spark, dots written as ``__``."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{slots}]")
    quiet = {"ui__enabled": "false", "ui__showConsoleProgress": "false"}
    for name, value in {**quiet, **settings}.items():
        builder = builder.config(f"spark.{name.replace('__', '.')}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
