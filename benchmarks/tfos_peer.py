"""TensorFlowOnSpark 2.2.5 as a peer of benchmarks: its ``InputMode.SPARK``, in a session and a process of its own.

What stops it with today's Python is put right here and nowhere else: it asks ``pkg_resources``, which setuptools no
longer has, for TensorFlow's version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import peers

NAME = "TensorFlowOnSpark 2.2.5"
MASTER = "local-cluster[2,1,2048]"
NODES = 2
ANSWER_SECONDS = 300.0
_STAND_IN = '''"""What TensorFlowOnSpark asks of pkg_resources."""
from importlib.metadata import PackageNotFoundError as DistributionNotFound, distribution as get_distribution
'''


class TFoS:
    """Another process, where a TensorFlowOnSpark cluster waits for work."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._listen, name="tfos-peer-output", daemon=True).start()
        self._answer("start")

    def ask(self, line: str | Path) -> Any:
        """Send a line and give what the program answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer("answer")

    def _answer(self, what: str) -> Any:
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            try:
                line = self._lines.get(timeout=1)
            except Empty:
                if self._process.poll() is None:
                    continue
                raise RuntimeError(f"TensorFlowOnSpark ended by itself, with status {self._process.poll()}") from None
            if line.startswith("{"):
                return json.loads(line)["answer"]
        raise TimeoutError(f"TensorFlowOnSpark did not {what} within {ANSWER_SECONDS:g} s")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)


@contextmanager
def tensorflowonspark(script: str, log: Path, *arguments: str) -> Iterator[TFoS | None]:
    """Start the peer's ``script``, and end it afterwards; None where it cannot be had. What it logs goes to ``log``."""
    if not peers.have("tensorflowonspark"):
        yield None
        return
    (peers.FOLDER / "pkg_resources.py").write_text(_STAND_IN)
    paths = os.pathsep.join([str(peers.FOLDER), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    with open(log, "w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), str(log.parent), *arguments],
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


def serve(folder: str, main: Callable[..., None], arguments: Any, answer: Callable[[Any, Any, str], Any]) -> None:
    """Start Spark and a cluster that runs ``main``; answer each line of standard input until there are no more."""
    from pyspark.sql import SparkSession
    from tensorflowonspark import TFCluster

    os.chdir(folder)
    spark = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cluster = TFCluster.run(spark.sparkContext, main, arguments, NODES, 0, input_mode=TFCluster.InputMode.SPARK)
    print(json.dumps({"answer": "ready"}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"answer": answer(spark, cluster, line.strip())}), flush=True)
    cluster.shutdown(timeout=30)
    spark.stop()
