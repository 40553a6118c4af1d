"""A decorated function in programs that are no notebook: a script, spark-submit, a marimo app."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = """
import json
import sys

import numpy as np
from pyspark.sql import SparkSession

import tfos_magic


@tfos_magic.distributed(workers=2, label="y", batch_size=8, shuffle=False, seed=3)
def fit(train, rate):
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(rate), "mse")
    model.fit(train, epochs=2, verbose=0)
    return model.get_weights()


def main(path):
    spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    train = spark.range(20, numPartitions=2).selectExpr("float(id) / 20 as x", "float(id) / 5 as y")
    weights = fit(train, 0.1)
    with open(path, "w") as file:
        json.dump([weight.tolist() for weight in weights], file)
"""
SCRIPT = PROGRAM + '\n\nif __name__ == "__main__":\n    main(sys.argv[1])\n'

MARIMO = """
import marimo

app = marimo.App()


@app.cell
def _():
    import program
    program.main({path!r})
    return


if __name__ == "__main__":
    app.run()
"""
SETTINGS = ["--master", "local[3]", "--conf", "spark.ui.enabled=false"]


def expected() -> list[np.ndarray]:
    """The weights of one process, by hand: stochastic gradient descent over batches of 8."""
    x = (np.arange(20, dtype="float32") / 20)[:, None]
    y = (np.arange(20, dtype="float32") / 5)[:, None]
    kernel, bias = np.ones((1, 1), "float32"), np.zeros(1, "float32")
    for _ in range(2):
        for begin in range(0, 20, 8):
            rows, labels = x[begin : begin + 8], y[begin : begin + 8]
            slope = 2 * (rows @ kernel + bias - labels) / len(rows)
            kernel, bias = kernel - 0.1 * rows.T @ slope, bias - 0.1 * slope.sum(axis=0)
    return [kernel, bias]


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["script", "spark-submit", "marimo"])
def test_a_decorated_function_trains_in_any_program_and_the_program_ends(way: str, tmp_path: Path) -> None:
    result = tmp_path / "weights.json"
    (tmp_path / "program.py").write_text(PROGRAM if way == "marimo" else SCRIPT)
    (tmp_path / "app.py").write_text(MARIMO.format(path=str(result)))
    tools = Path(sys.executable).parent
    command = {
        "script": [sys.executable, "program.py", str(result)],
        "spark-submit": [str(tools / "spark-submit"), *SETTINGS, "program.py", str(result)],
        "marimo": [sys.executable, "-m", "marimo", "export", "html", "app.py", "-o", "app.html"],
    }[way]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trained = [np.asarray(weight, "float32") for weight in json.loads(result.read_text())]
    for mine, by_hand in zip(trained, expected(), strict=True):
        np.testing.assert_allclose(mine, by_hand, atol=1e-5)


INTERRUPTED = """
import os
import signal
import threading
import time

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tfos_magic import TFCluster

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    tracker = spark.sparkContext.statusTracker()
    with TFCluster(spark, workers=1) as cluster:
        spark.sparkContext.setJobGroup("mine", "an ordinary job")
        threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            spark.sparkContext.parallelize([0], 1).map(lambda _: time.sleep(100)).count()
        except KeyboardInterrupt:
            print("interrupted")
        try:
            (mine,) = tracker.getJobIdsForGroup("mine")
        except Py4JError:  # PySpark's first call after one that was interrupted may fail, whoever handles interrupts
            (mine,) = tracker.getJobIdsForGroup("mine")
        deadline = time.monotonic() + 20
        while mine in tracker.getActiveJobsIds() and time.monotonic() < deadline:
            time.sleep(0.1)
        print("its job:", tracker.getJobInfo(mine).status)
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            time.sleep(100)
        except KeyboardInterrupt:
            print("interrupted")
        print("the same worker:", cluster.run("answer = 6 * 7", outputs=["answer"])["answer"], cluster.notices)
"""


@pytest.mark.soak
def test_an_interrupt_elsewhere_in_a_program_cancels_its_own_job_and_no_worker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(INTERRUPTED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if not line.startswith("waiting")]
    assert lines == ["interrupted", "its job: FAILED", "interrupted", "the same worker: 42 []"]


AFTERWARDS = """
import os
import time

import psutil
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tfos_magic import TFCluster
from tfos_magic.errors import TFOSError
from tfos_magic.spark.session import make_local_session


def tried(what, work):
    try:
        print(f"{what}: {work()}")
    except TFOSError as error:
        print(f"{what}: {error}")


if __name__ == "__main__":
    make_local_session(3).stop()
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    settings = spark.sparkContext.getConf()
    print("its own:", [settings.get(name) for name in ("spark.default.parallelism", "spark.python.daemon.module")])
    print("partitions:", spark.range(10).rdd.getNumPartitions())
    cluster = TFCluster(spark, workers=1).start()
    java = psutil.Process(SparkContext._gateway.proc.pid)
    for process in [*java.children(recursive=True), java]:
        if "java" in process.name():
            process.kill()
    time.sleep(5)
    tried("the next run", lambda: cluster.run("a = 1", outputs=["a"]))
    cluster.stop()
    tried("another session", lambda: make_local_session(2))
"""


@pytest.mark.soak
def test_a_session_of_ours_leaves_nothing_to_the_next_and_a_java_process_that_ends_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(AFTERWARDS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines() if not line.startswith("waiting"))
    assert told["its own"] == "[None, None]"
    assert told["partitions"] == "2"
    for what in ("the next run", "another session"):
        assert "Spark's Java process has ended" in told[what]
        assert "restart the kernel" in told[what]
