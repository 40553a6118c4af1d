"""A program whose Connect server does not answer for a moment, and then no more: says as JSON what came of its runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tfos_magic import TFCluster
from tfos_magic.cluster.runs.run import Run

PAUSE_SECONDS = 4.0
CELL = """
import time
import keras

class Slow(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        time.sleep(0.1)

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(train, epochs=600, callbacks=[Slow()])
"""


def main(folder: str) -> dict[str, Any]:
    """Train through a pause of the server, then lose that, and see what answers."""
    spark: Any = SparkSession.builder.remote("local[3]").getOrCreate()
    gateway: Any = SparkContext._gateway
    train = spark.range(0, 320, 1, 2).selectExpr("cast(id as float) x", "cast(id as float) y")
    frames = {"frames": {"train": train}, "label": "y", "batch_size": 32}
    cluster = TFCluster(spark, workers=2, start_timeout=150).start()
    run = cluster.submit(CELL, checkpoint_dir=folder, **frames)
    said: set[str] = set()
    run.on_change(lambda run: said.add(run.state.awaited.what if run.state.awaited else ""))
    _await_epoch(run, 1)
    os.kill(gateway.proc.pid, signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS)
    os.kill(gateway.proc.pid, signal.SIGCONT)
    time.sleep(PAUSE_SECONDS)
    before = len(run.state.history)
    _await_epoch(run, before + 1)
    paused = {"done": run.done, "goes on": len(run.state.history) > before, "restarts": run.state.restarts}
    gateway.proc.kill()
    return {
        "paused": paused,
        "lost": _timed(lambda: run.wait(90)),
        "said": sorted(said),
        "status": _timed(lambda: cluster.status().reason),
        "stop": _timed(lambda: str(cluster.stop())),
        "next": _timed(lambda: TFCluster(spark, workers=2).start()),
    }


def _await_epoch(run: Run, number: int) -> None:
    deadline = time.monotonic() + 90
    while len(run.state.history) < number and not run.done and time.monotonic() < deadline:
        time.sleep(0.1)


def _timed(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call gave or raised, and how long that took."""
    started = time.monotonic()
    try:
        kind, text = "", str(call())
    except Exception as error:
        kind, text = type(error).__name__, str(error)
    return {"kind": kind, "text": text, "seconds": time.monotonic() - started}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        outcome = main(sys.argv[1])
    print(json.dumps({**outcome, "ended": time.time()}))
