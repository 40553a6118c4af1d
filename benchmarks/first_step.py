"""The time from running a cell to the end of its first step: from nothing, part by part, and on a warm cluster.

Two workers train a small CNN from a DataFrame of 4,096 MNIST-shaped rows. The peer is a plain process that runs the
same cell on arrays. Every start from nothing is a fresh Python process.

    python benchmarks/first_step.py [--starts 3]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from plain import run_in_fresh_process

AIM = 1.5
WARM_CELLS = 3
ROWS = 4096

CELL = """
import time
began = time.time()
import keras
stepped = []
class FirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if not stepped:
            stepped.append(time.time())
            self.model.stop_training = True
model = keras.Sequential([
    keras.Input((784,)), keras.layers.Reshape((28, 28, 1)),
    keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D(),
    keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(train, verbose=0, callbacks=[FirstStep()])
"""

Parts = dict[str, float]
"""Seconds by part, in the order they happened."""


@contextlib.contextmanager
def timing(parts: Parts, name: str) -> Iterator[None]:
    started = time.time()
    yield
    parts[name] = time.time() - started


def run_to_first_step(connect: Callable[[], Any], frame: Any, size: int) -> Parts:
    """Run the cell on ``frame`` and give the seconds of each part."""
    from tfos_magic.cluster.runs import execution
    from tfos_magic.cluster.runs.request import Observer
    from tfos_magic.cluster.runs.submit_options import request_of

    parts: Parts = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with timing(parts, name):
                return function(*args)

        return call

    started = time.time()
    request = request_of(CELL, frames={"train": frame}, label="label", batch_size=128, outputs=["began", "stepped"])
    run = execution.Execution(request, size, timed("agents", connect))
    steps = {"feed_all": "feed", "await_trainers": "TensorFlow loaded, what is left of it"}
    with ExitStack() as stack:
        for function, name in steps.items():
            stack.enter_context(mock.patch.object(execution, function, timed(name, getattr(execution, function))))
        values = run.execute(Observer(), lambda meanwhile: None)
    parts["send"] = values["began"] - started - sum(parts.values())
    parts["first line to first step"] = values["stepped"][0] - values["began"]
    return parts


def cluster_start(began: float, pipe: Connection) -> None:
    """In a fresh process: Python, Spark, a cluster, a feed and a first step; then the same cell again, warm."""
    from pyspark.sql import functions as F

    from tfos_magic import TFCluster
    from tfos_magic.spark.session import make_local_session

    parts = {"Python and imports": time.time() - began}
    with timing(parts, "Spark session"):
        spark = make_local_session(3)
    spark.sparkContext.setLogLevel("ERROR")
    pixels = F.array_repeat((F.col("id") % 255 / 255).cast("float"), 784)
    frame = spark.range(0, ROWS, 1, 4).select(pixels.alias("pixels"), (F.col("id") % 10).alias("label"))
    cluster = TFCluster(spark, workers=2)
    parts.update(run_to_first_step(lambda _: cluster.start(wait_for_trainers=False), frame, 2))
    warm = [run_to_first_step(lambda _: cluster, frame, 2) for _ in range(WARM_CELLS)]
    cluster.stop()
    spark.stop()
    pipe.send((parts, warm))


def plain_start(began: float, pipe: Connection) -> None:
    """The peer in a fresh process: TensorFlow, arrays and a first step; then the same cell again, warm."""
    import numpy as np
    import tensorflow as tf

    x, y = np.random.default_rng(0).random((ROWS, 784), dtype=np.float32), np.arange(ROWS) % 10
    taken: list[float] = []
    for _ in range(1 + WARM_CELLS):
        namespace = {"__name__": "__main__", "train": tf.data.Dataset.from_tensor_slices((x, y)).batch(128)}
        started = time.time()
        exec(compile(CELL, "<cell>", "exec"), namespace)
        taken.append(namespace["stepped"][0] - (started if taken else began))
    pipe.send(taken)


def report(starts: int) -> list[str]:
    """Measure, ours and the peer in turns, and say what came of it."""
    cold: list[Parts] = []
    warm: list[Parts] = []
    plain: list[list[float]] = []
    for _ in range(starts):
        first, again = run_in_fresh_process(cluster_start)
        cold.append(first)
        warm += again
        plain.append(run_in_fresh_process(plain_start))
    peer_cold = [taken[0] for taken in plain]
    peer_warm = [seconds for taken in plain for seconds in taken[1:]]
    return [
        f"To the first step: 2 workers, CNN, {ROWS} rows; seconds, medians of {starts} starts",
        *table("from nothing", cold, peer_cold),
        *table(f"on a warm cluster, rows fed before (aim: at most {AIM})", warm, peer_warm),
    ]


def table(title: str, runs: list[Parts], peer: list[float]) -> list[str]:
    lines = ["", title]
    lines += [f"  {name:40}{statistics.median(run[name] for run in runs):6.2f}" for name in runs[0]]
    totals = [sum(run.values()) for run in runs]
    lines.append(f"  {'in all':40}{statistics.median(totals):6.2f}   ({min(totals):.2f} to {max(totals):.2f})")
    lines.append(f"  {'plain Keras':40}{statistics.median(peer):6.2f}   ({min(peer):.2f} to {max(peer):.2f})")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    prepare_environment()
    print("\n".join(report(options.starts)))


def prepare_environment() -> None:
    """What the processes below inherit: Spark's workers run this Python, TensorFlow says little."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


if __name__ == "__main__":
    main()
