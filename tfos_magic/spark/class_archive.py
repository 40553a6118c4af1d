"""An archive of the classes of Spark's JVM, parsed and verified once: a session with it starts in about half the time.

``python -m tfos_magic.spark.class_archive`` makes it, which takes about a minute; local sessions that this package
makes map it from then on. It is for one Java and one Spark, and lies in the user's cache folder (JEP 350, dynamic
archives).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MAKING_SECONDS = 300.0
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"

# What cells let Spark do. The JVM writes the archive when it ends, which is after the session did.
_PROGRAM = """
import pandas as pd
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(0, 60, 1, 3).select(F.array(F.rand(1).cast("float")).alias("x"), (F.col("id") % 2).alias("y"))
rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet("rows")
frame = spark.read.parquet("rows").union(spark.createDataFrame(pd.DataFrame({"x": [[1.0]], "y": [1]})))
frame.withColumn("z", F.udf(lambda y: y + 1, "long")("y")).groupBy("y").agg(F.sum("z")).orderBy("y").collect()
query = spark.readStream.schema(rows.schema).parquet("rows").writeStream.trigger(availableNow=True)
query.foreachBatch(lambda batch, number: batch.count()).start().awaitTermination(60)
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait(180)
"""


def path_of(folder: Path | None = None, options: str = "") -> Path:
    """Where the archive for this Java, this Spark and these JVM ``options`` is, or would be."""
    import pyspark

    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    java = (java if java.exists() else Path(shutil.which("java") or "java")).resolve()
    made = java.stat().st_mtime_ns if java.exists() else 0
    key = f"{java} {made} {Path(pyspark.__file__).parent} {pyspark.__version__} {options}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfos_magic"
    return (folder or cache) / f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def mapping(archive: Path) -> str:
    """The JVM's options to map ``archive``: a JVM that it does not fit does without, and does not say so."""
    return f"-XX:SharedArchiveFile={archive} {_QUIET}"


def is_ours(archive: Path) -> bool:
    """Whether it is there and nobody but this user can have written it: what it holds is code."""
    try:
        found = archive.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def make(archive: Path, options: str = "", seconds: float = MAKING_SECONDS) -> bool:
    """Let a JVM with ``options`` do what cells do, and write its classes to ``archive``; whether it did in time."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(f".{os.getpid()}")
    options = f"{options} -XX:ArchiveClassesAtExit={unfinished} {_QUIET}"
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
    try:
        with tempfile.TemporaryDirectory(prefix="tfos-archive-") as folder:
            ended = _run(folder, environment, seconds)
        if made := ended and unfinished.exists():
            unfinished.replace(archive)
        return made
    finally:
        unfinished.unlink(missing_ok=True)


def _run(folder: str, environment: dict[str, str], seconds: float) -> bool:
    """Run the program, and end it with its JVM where it does not end in time; whether it did."""
    silent: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    program = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(program, env=environment, cwd=folder, start_new_session=True, **silent) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return False
        return True


def main() -> int:
    archive = path_of()
    if is_ours(archive):
        print(f"The classes of Spark's JVM are in {archive}.")
        return 0
    print("Storing the classes of Spark's JVM, once: local sessions start sooner then (about a minute) ...", flush=True)
    if not make(archive):
        print(f"There was no archive within {MAKING_SECONDS:.0f} s: sessions start without one, and take longer.")
        return 1
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
