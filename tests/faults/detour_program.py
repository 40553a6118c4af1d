"""Runs whose messages go by Spark: one beside a job with more tasks than slots, one whose relay is killed, one without
a slot for messages. Prints what came of them as JSON; its own process, for the executors of its own session."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tfos_magic import TFCluster
from tfos_magic.cluster.runs.request import Observer
from tfos_magic.errors import TFOSError
from tfos_magic.spark.session import busy_cores

SLOTS = 4
CELL = """
import time
import keras

class Slowly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.3)

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(train, epochs=4, verbose=0, callbacks=[Slowly()])
weights = model.get_weights()
"""


class Watcher(Observer):
    """Calls ``then`` in the second epoch, and keeps what was waited for."""

    def __init__(self, then: Any) -> None:
        self._then, self.state = then, None
        self.waits: set[str] = set()

    def update(self, state: Any) -> None:
        self.state = state
        self.waits.add(state.awaited.what if state.awaited else "")
        if self._then and state.epoch == 1 and state.step >= 2:
            threading.Thread(target=self._then, daemon=True).start()
            self._then = None


def _run(cluster: TFCluster, train: Any, then: Any) -> tuple[list[Any], Watcher]:
    watcher = Watcher(then)
    given: dict[str, Any] = {"label": "y", "batch_size": 8, "shuffle": False, "seed": 7, "outputs": ["weights"]}
    found = cluster.run(CELL, frames={"train": train}, observer=watcher, checkpoint_every=2, **given)
    return found["weights"], watcher


def _crowd(spark: SparkSession) -> None:
    """Hold all free slots with a job that has more tasks than there are, for half a minute."""
    spark.sparkContext.parallelize(range(12), 12).foreach(lambda _: time.sleep(5))


def _kill_relay(cluster: TFCluster) -> None:
    port = int(cluster._agents.detour._endpoint.rpartition(":")[2])
    listening = (each for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port)
    os.kill(next(listening).pid or 0, signal.SIGKILL)


def main() -> dict[str, Any]:
    """Run all three in one session."""
    conf = {"ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "ERROR", "executor.memory": "900m"}
    builder = SparkSession.builder.master(f"local-cluster[1,{SLOTS},1024]")
    spark = builder.config(map={f"spark.{key}": value for key, value in conf.items()}).getOrCreate()
    features = F.array(*[F.rand(i).cast("float") for i in range(4)])
    train = spark.range(0, 64, 1, 4).select(features.alias("x"), (F.col("id") % 2).cast("float").alias("y"))
    with TFCluster(spark, workers=2, via="spark", start_timeout=90) as cluster:
        expected, crowded = _run(cluster, train, lambda: _crowd(spark))
        weights, lost = _run(cluster, train, lambda: _kill_relay(cluster))
    held = threading.Thread(target=lambda: spark.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(25)))
    held.start()
    while not busy_cores(spark):
        time.sleep(0.1)
    refused = ""
    try:
        TFCluster(spark, workers=2, via="spark", start_timeout=5).start()
    except TFOSError as error:
        refused = str(error)
    held.join()
    spark.stop()
    furthest = max(float(abs(one - other).max()) for one, other in zip(weights, expected, strict=True))
    return {
        "crowded": {
            "restarts": crowded.state.restarts,
            "waited": any("to carry the workers' messages" in wait for wait in crowded.waits),
        },
        "furthest": furthest,
        "restarts": lost.state.restarts,
        "told": " ".join(lost.state.notices),
        "refused": refused,
    }


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        outcome = main()
    print(json.dumps(outcome))
