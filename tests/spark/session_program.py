"""A user's program without magics, for one kind of session: trains from a DataFrame and prints what happened as JSON.

Run as its own process, since a process has one JVM and one kind of session.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tfos_magic import TFCluster
from tfos_magic.errors import TFOSError

CELL = """
import hashlib, os, socket
import keras
import numpy as np
import tfos_magic

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(train, epochs=2)
digest = hashlib.sha256(b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())).hexdigest()
print("digest", digest, "cuda", os.environ["CUDA_VISIBLE_DEVICES"])
package = tfos_magic.__file__
"""


def main(options: dict[str, Any]) -> dict[str, Any]:
    """Make the session, start, train, stop, and use the session once more."""
    builder = SparkSession.builder
    builder = builder.remote(options["remote"]) if "remote" in options else builder.master(options["master"])
    for key, value in options.get("conf", {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    train = spark.range(0, 301, 1, 5).select(
        F.array(*[F.rand(i).cast("float") for i in range(4)]).alias("x"), (F.col("id") % 2).alias("y")
    )
    cluster = TFCluster(spark, workers=2, start_timeout=90, **options.get("cluster", {}))
    with cluster:
        status = cluster.status()
        relayed = cluster._agents.detour.taken
        results = cluster.run(CELL, frames={"train": train}, label="y", outputs=["history", "package"])
        logs = cluster.logs(tail=5)
        frames = [spark.sql(query) for query in options.get("refused", [])]
        if options.get("streaming"):
            frames.append(spark.readStream.format("rate").load())
        refusals = [_refusal(cluster, frame) for frame in frames]
    started = time.monotonic()
    count = spark.range(9).count()
    return {
        "master": status.master,
        "workers": [[worker.host, worker.pid] for worker in status.workers],
        "losses": len(results["history"].history["loss"]),
        "package": results["package"],
        "said": {rank: next(line for line in lines if line.startswith("digest")) for rank, lines in logs.items()},
        "refusals": refusals,
        "count": count,
        "relayed": relayed,
        "seconds after": time.monotonic() - started,
    }


def _refusal(cluster: TFCluster, frame: DataFrame) -> str:
    """What is said of a DataFrame that cannot be fed."""
    try:
        cluster.run(CELL, frames={"train": frame}, label="y" if "y" in frame.columns else None)
    except TFOSError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        try:
            outcome = main(json.loads(sys.argv[1]))
        except Exception as error:
            outcome = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(outcome))
