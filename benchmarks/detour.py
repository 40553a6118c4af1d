"""A kernel that executors cannot reach: seconds to start and to stop, and how often its panel has news.

The kernel is a host of its own (``network.py``; Linux, as root), of which others may dial nothing but what Spark itself
needs; every other packet that would begin a connection to it is dropped. With ``connect`` Spark Connect's server and
its executors are on another host, with ``classic`` a standalone worker is, and the driver is the kernel's.

    python benchmarks/detour.py connect|classic [--via spark] [--open] [--json]

``--open`` drops nothing, to compare with.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from itertools import pairwise
from typing import Any

from hosts import CELL, START_SECONDS, daemon
from network import Link, Network, available

from tfos_magic.cluster.runs.request import Observer

MASTER, DRIVER, BLOCKS, CONNECT = 7077, 7078, 7079, 15002


class Panel(Observer):
    """Notes when a worker's progress came, and calls ``then`` at the ``step``-th."""

    def __init__(self, step: int, then: Any = None) -> None:
        self.came: list[float] = []
        self.state: Any = None
        self._seen = (0, 0)
        self._step, self._then = step, then

    def update(self, state: Any) -> None:
        self.state = state
        if state.epochs and (state.epoch, state.step) != self._seen:
            self._seen = (state.epoch, state.step)
            self.came.append(time.monotonic())
            if self._then and len(self.came) == self._step:
                threading.Thread(target=self._then, daemon=True).start()


def be_spark(door: str, kind: str, folder: str) -> None:
    """Be the executors' host until this process is ended."""
    Network.join(door, 1)
    os.environ |= {"SPARK_LOCAL_IP": Network.address(1), "SPARK_WORKER_DIR": folder, "PYSPARK_PYTHON": sys.executable}
    if kind == "connect":
        name = "org.apache.spark.deploy.SparkSubmit"
        conf = {"spark.ui.enabled": "false", "spark.connect.grpc.binding.address": Network.address(1)}
        settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[4]"]
        arguments = [*server, *settings, "spark-internal"]
    else:
        _await(Network.address(0), MASTER)
        name = "org.apache.spark.deploy.worker.Worker"
        arguments = ["-h", Network.address(1), "-c", "4", "-m", "3g", f"spark://{Network.address(0)}:{MASTER}"]
    with daemon(name, *arguments, folder=folder) as process:
        process.wait()


def be_kernel(pipe: Any, door: str, kind: str, via: str, folder: str) -> None:
    """Be the kernel's host, and send what was measured."""
    Network.join(door, 0)
    os.environ |= {"SPARK_LOCAL_IP": Network.address(0), "PYSPARK_PYTHON": sys.executable}
    try:
        if kind == "connect":
            _await(Network.address(1), CONNECT)
            pipe.send(_measured(_connected(), via))
        else:
            with daemon("org.apache.spark.deploy.master.Master", "-h", Network.address(0), folder=folder):
                _await(Network.address(0), MASTER)
                pipe.send(_measured(_classic(), via))
    except BaseException as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})


def _await(host: str, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), 1).close()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens at {host}:{port} after {START_SECONDS:.0f} s")
        time.sleep(0.2)


def _connected() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(f"sc://{Network.address(1)}:{CONNECT}").getOrCreate()


def _classic() -> Any:
    from pyspark.sql import SparkSession

    conf = {"cores.max": "4", "executor.memory": "900m", "ui.enabled": "false", "ui.showConsoleProgress": "false"}
    conf |= {
        "driver.host": Network.address(0),
        "driver.port": DRIVER,
        "blockManager.port": BLOCKS,
        "log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"spark://{Network.address(0)}:{MASTER}")
    return builder.config(map={f"spark.{key}": value for key, value in conf.items()}).getOrCreate()


def _measured(spark: Any, via: str) -> dict[str, Any]:
    from pyspark.sql import functions as F

    from tfos_magic import TFCluster
    from tfos_magic.errors import RunInterrupted

    spark.range(4).count()  # executors are there
    features = F.array(*[F.rand(i).cast("float") for i in range(8)])
    train = spark.range(0, 96, 1, 4).select(features.alias("x"), (F.col("id") % 2).cast("float").alias("y"))
    given: dict[str, Any] = {"label": "y", "batch_size": 16, "shuffle": False, "seed": 7}
    found: dict[str, Any] = {}
    cluster = TFCluster(spark, workers=2, start_timeout=90, via=via)
    began = time.monotonic()
    cluster.start(wait_for_trainers=False)
    found["agents"] = time.monotonic() - began
    cluster.wait_ready()
    found["start"] = time.monotonic() - began
    panel = Panel(0)
    done = cluster.run(CELL, frames={"train": train}, names={"epochs": 5}, outputs=["weights"], observer=panel, **given)
    found["digest"] = [float(abs(weight).sum()) for weight in done["weights"]]
    found["told"] = list(panel.state.notices)
    found["updates"] = len(panel.came) / (panel.came[-1] - panel.came[0])
    found["longest"] = max(after - before for before, after in pairwise(panel.came))
    asked: list[float] = []
    panel = Panel(8, lambda: (asked.append(time.monotonic()), run.stop()))
    run = cluster._run_of(
        CELL,
        detached=True,
        frames={"train": train},
        names={"epochs": 500},
        outputs=["weights"],
        observer=panel,
        **given,
    ).start()
    with contextlib.suppress(RunInterrupted):
        run.wait(60)
    found["interrupt"], found["state"] = time.monotonic() - asked[0], run.state.phase.value
    began = time.monotonic()
    cluster.stop()
    found["stop"] = time.monotonic() - began
    found["after"] = spark.range(9).count()
    spark.stop()
    return found


def measure(kind: str, via: str = "", closed: bool = True) -> dict[str, Any]:
    """Set the hosts up, and give what was measured, in seconds, or an ``error``."""
    context = multiprocessing.get_context("spawn")
    ports = [MASTER, DRIVER, BLOCKS] if kind == "classic" else []
    with tempfile.TemporaryDirectory() as folder, Network(2, Link(), ports if closed else None) as network:
        ours, theirs = context.Pipe()
        processes = [
            context.Process(target=be_spark, args=(network.door, kind, folder)),
            context.Process(target=be_kernel, args=(theirs, network.door, kind, via, folder)),
        ]
        for process in processes:
            process.start()
        theirs.close()
        found: dict[str, Any] = ours.recv() if ours.poll(400) else {"error": "nothing came within 400 s"}
        for process in reversed(processes):
            process.terminate()
            process.join(30)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["connect", "classic"])
    parser.add_argument("--via", default="", help="spark: by Spark from the beginning")
    parser.add_argument("--open", action="store_true", help="drop no packets")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    options = parser.parse_args()
    if not available():
        raise SystemExit("detour.py makes network namespaces: run it as root on Linux, with /dev/net/tun.")
    found = measure(options.kind, options.via, not options.open)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:12}{value:.2f}" if isinstance(value, float) else f"{name:12}{value}")


if __name__ == "__main__":
    main()
