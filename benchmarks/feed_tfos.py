"""TensorFlowOnSpark 2.2.5 as a peer of the feed benchmark: its InputMode.SPARK, in a session and a process of its own.

What stops it with today's Python is put right here and nowhere else: it asks ``pkg_resources``, which setuptools no
longer has, for TensorFlow's version.

    python benchmarks/feed_tfos.py FOLDER     (told what to do on its standard input; benchmarks/feed.py does that)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import peers

MASTER = "local-cluster[2,1,2048]"
NODES = 2
BATCH = 128
ANSWER_SECONDS = 300.0
_STAND_IN = '''"""What TensorFlowOnSpark asks of pkg_resources."""
from importlib.metadata import PackageNotFoundError as DistributionNotFound, distribution as get_distribution
'''


class TFoS:
    """Another process, where a TensorFlowOnSpark cluster waits for rows."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._listen, name="tfos-peer-output", daemon=True).start()
        self._answer("start")

    def feed(self, path: Path) -> None:
        """Feed the Parquet files below ``path`` once, until the workers have taken every row from their queues."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        self._answer("feed")

    def _answer(self, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            try:
                line = self._lines.get(timeout=1)
            except Empty:
                if self._process.poll() is None:
                    continue
                raise RuntimeError(f"TensorFlowOnSpark ended by itself, with status {self._process.poll()}") from None
            if line.startswith("{"):
                return dict(json.loads(line))
        raise TimeoutError(f"TensorFlowOnSpark did not {what} within {ANSWER_SECONDS:g} s")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


@contextmanager
def tensorflowonspark(log: Path) -> Iterator[TFoS | None]:
    """Start the peer, and end it afterwards; None where it cannot be had. What it logs goes to ``log``."""
    if not peers.have("tensorflowonspark"):
        yield None
        return
    (peers.FOLDER / "pkg_resources.py").write_text(_STAND_IN)
    paths = os.pathsep.join([str(peers.FOLDER), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    with open(log, "w") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__, str(log.parent)],
            env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "-1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield TFoS(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def consume(arguments: Any, context: Any) -> None:
    """The peer's "main" function on each worker: take batches as arrays until there are no more."""
    import numpy as np

    feed = context.get_data_feed(train_mode=True)
    while not feed.should_stop():
        batch = feed.next_batch(BATCH)
        np.array([row[0] for row in batch], np.float32)
        np.array([row[1] for row in batch], np.int64)


def serve(folder: str) -> None:
    """Start Spark and the cluster; feed the Parquet files below each path on standard input, and say when that ends."""
    from pyspark.sql import SparkSession
    from tensorflowonspark import TFCluster

    os.chdir(folder)
    spark = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cluster = TFCluster.run(spark.sparkContext, consume, {}, NODES, 0, input_mode=TFCluster.InputMode.SPARK)
    print(json.dumps({"version": version("tensorflowonspark")}), flush=True)
    for line in sys.stdin:
        cluster.train(spark.read.parquet(line.strip()).rdd.map(lambda row: (row["pixels"], row["label"])), 1)
        print(json.dumps({"fed": line.strip()}), flush=True)
    cluster.shutdown(timeout=30)
    spark.stop()


if __name__ == "__main__":
    serve(sys.argv[1])
