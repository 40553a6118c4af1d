"""A user's program on a cluster of executors, one of which dies while a cell trains; prints what happened as JSON.

Run as its own process, since a process has one JVM and one kind of session.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.faults.cells import Watch, furthest, run
from tests.jvm import EXECUTORS
from tfos_magic import TFCluster

KILL_EXECUTOR = (
    "import psutil; "
    "[p.kill() for p in psutil.Process().parents() if 'CoarseGrainedExecutorBackend' in ' '.join(p.cmdline())]; "
    "time.sleep(60)"
)


def main(folder: Path) -> dict[str, Any]:
    builder = SparkSession.builder.master("local-cluster[3,1,600]")
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.executor.memory": "600m"}
    spark = builder.config(map=quiet | EXECUTORS).getOrCreate()
    data, watch = rows(spark), Watch()
    with TFCluster(spark, workers=2) as cluster:
        undisturbed, results = lose_executor(cluster, folder, data, watch)
    return {
        "furthest": furthest(results, undisturbed),
        "restarts": watch.state.restarts,
        "notices": watch.state.notices,
        "count": spark.range(9).count(),
    }


def rows(spark: SparkSession) -> dict[str, Any]:
    """Options of a run that is fed."""
    features = F.array(*[F.rand(i).cast("float") for i in range(8)])
    train = spark.range(0, 96, 1, 3).select(features.alias("x"), (F.col("id") % 2).cast("float").alias("y"))
    return {"frames": {"train": train}, "label": "y", "batch_size": 16, "seed": 7}


def lose_executor(
    cluster: TFCluster, folder: Path, data: dict[str, Any], watch: Watch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run gives to which nothing happens, and one whose second worker's executor is killed."""
    undisturbed = run(cluster, "pass", folder / "nothing", **data)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:  # a worker's view of /tmp goes with its executor
        return undisturbed, run(cluster, KILL_EXECUTOR, Path(shared) / "mark", watch=watch, **data)


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        outcome = main(Path(sys.argv[1]))
    print(json.dumps(outcome))
