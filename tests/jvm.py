"""The JVMs of the suite: they live for seconds, so what counts is how quickly they start.

They take one compiler and one collector thread, and map an archive of Spark's classes, parsed and verified, that the
first suite on a machine makes (JEP 350, dynamic archives): that halves the processor time of a session's start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTORS = {"spark.executor.extraJavaOptions": QUICK}
FOLDER = Path(__file__).resolve().parent.parent / ".pytest_cache" / "jvm"
MAKING_SECONDS = 150

# What most tests let Spark do. The JVM writes the archive when it ends, which is after the session did.
PROGRAM = """
import pandas as pd
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(0, 60, 1, 3).select(F.array(F.rand(1).cast("float")).alias("x"), (F.col("id") % 2).alias("y"))
rows.mapInArrow(lambda batches: batches, rows.schema, barrier=True).write.parquet("rows")
frame = spark.read.parquet("rows").union(spark.createDataFrame(pd.DataFrame({"x": [[1.0]], "y": [1]})))
frame.withColumn("z", F.udf(lambda y: y + 1, "long")("y")).groupBy("y").agg(F.sum("z")).orderBy("y").collect()
query = spark.readStream.schema(rows.schema).parquet("rows").writeStream.trigger(availableNow=True)
query.foreachBatch(lambda batch, number: batch.count()).start().awaitTermination(60)
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait(60)
"""


def settings() -> dict[str, str]:
    """The environment of what starts JVMs. ``TMPDIR`` is obeyed; a configuration of the user's is not."""
    files = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
    mapped = f"-XX:SharedArchiveFile={archive()} -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
    return {
        "SPARK_CONF_DIR": str(FOLDER / "conf"),  # stays empty: a JVM takes no archive with files on its class path
        "SPARK_SUBMIT_OPTS": f"{QUICK} {files} {mapped}",
        "SPARK_LAUNCHER_OPTS": QUICK,
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {files}",
    }


def archive() -> Path:
    """Where the archive for this Java and this Spark is, or will be: a JVM does without one that is not there."""
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    java = (java if java.exists() else Path(shutil.which("java") or "java")).resolve()
    made = java.stat().st_mtime_ns if java.exists() else 0
    key = f"{java} {made} {Path(pyspark.__file__).parent} {pyspark.__version__} {QUICK}"
    return FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def make_archive() -> None:
    """Make the archive, unless it is there or another suite is at it. One that cannot be made only costs time."""
    target = archive()
    (FOLDER / "conf").mkdir(parents=True, exist_ok=True)
    with (FOLDER / "making").open("w") as lock, tempfile.TemporaryDirectory(prefix="archive-") as folder:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if target.exists():
            return
        unfinished = target.with_suffix(".unfinished")
        options = f"{QUICK} -XX:ArchiveClassesAtExit={unfinished} -Xlog:cds=off -Xlog:cds+dynamic=off"
        environment = {**os.environ, **settings(), "SPARK_SUBMIT_OPTS": options}
        program = [sys.executable, "-c", PROGRAM]
        with contextlib.suppress(subprocess.TimeoutExpired):  # on a machine that does much else
            subprocess.run(program, env=environment, cwd=folder, capture_output=True, timeout=MAKING_SECONDS)
        if unfinished.exists():
            unfinished.replace(target)
