"""Three hosts, and what may happen to them while a cell trains: a table of what was done and what its user saw.

Hosts are network namespaces of this machine (``network.py``; Linux, as root): the notebook's, with Spark's standalone
master, and two with a worker of Spark each. A cell trains on two workers under ``sync``, fed from a DataFrame, while
links are cut and processes killed; its weights are compared with those of a run that nothing happened to.

    python benchmarks/hosts.py [--rate 1000] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from network import Link, Network, available

from tfos_magic.cluster.runs.request import Observer
from tfos_magic.notebook.views.picture import take_picture
from tfos_magic.processes.child_process import die_with_parent

MASTER_PORT = 7077
CORES = 3
START_SECONDS = 120.0
EPOCHS, STEPS = 4, 6
CELL = """
import time
import keras
import numpy as np

class Slowly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(train, epochs=epochs, verbose=0, callbacks=[Slowly()])
weights = model.get_weights()
"""


@dataclass
class Event:
    """What was done, how many seconds the run took, how far its weights are from those of the undisturbed one (None
    where it gave none), what its user was told, and the longest wait of which nothing was said."""

    done: str
    seconds: float = 0.0
    furthest: float | None = None
    told: list[str] = field(default_factory=list)
    silent: float = 0.0
    error: str = ""


class Screen(Observer):
    """An observer that notes what a panel shows, and when it changed."""

    def __init__(self, reached: Callable[[Any], bool], then: Callable[[], object]) -> None:
        self._reached = reached
        self._then: Callable[[], object] | None = then
        self.state: Any = None
        self.shown: list[tuple[float, str]] = []

    def update(self, state: Any) -> None:
        self.state = state
        text = take_picture(state).position
        if not self.shown or self.shown[-1][1] != text:
            self.shown.append((time.monotonic(), text))
        if self._then is not None and self._reached(state):
            threading.Thread(target=self._then, daemon=True).start()
            self._then = None

    @property
    def silent(self) -> float:
        """The longest time in which the panel showed the same."""
        times = [when for when, _ in self.shown]
        return max((after - before for before, after in pairwise(times)), default=0.0)


class Hosts:
    """What can be done to the hosts and to the cluster on them."""

    def __init__(self, cluster: Any, cut_off: Any) -> None:
        self.cluster, self._cut_off = cluster, cut_off

    def cut(self, rank: int, seconds: float = 0.0) -> None:
        """Cut off the host of a worker; with ``seconds``, for so long."""
        number = int(self.cluster.workers[rank].agent.host.rpartition(".")[2]) - 1
        self._cut_off[number] = 1
        if seconds:
            time.sleep(seconds)
            self._cut_off[number] = 0

    def kill(self, rank: int, what: str) -> None:
        """Kill a worker's trainer, agent or Spark executor."""
        import psutil

        worker = self.cluster.workers[rank]
        if what == "executor":
            for process in psutil.Process(worker.agent.pid).parents():
                if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                    process.kill()
        else:
            os.kill(worker.pid if what == "trainer" else worker.agent.pid, signal.SIGKILL)


def drive(pipe: Any, door: str, cut_off: Any, folder: str, only: str) -> None:
    """Be the notebook's host: start Spark's master and a session, do what has ``only`` in its name, and send the
    events."""
    Network.join(door, 0)
    os.environ |= {"SPARK_LOCAL_IP": Network.address(0), "PYSPARK_PYTHON": sys.executable}
    with daemon("org.apache.spark.deploy.master.Master", "-h", Network.address(0), folder=folder):
        _await_master()
        for event in _events(cut_off, only):
            pipe.send(event)
    pipe.send(None)


def be_worker(door: str, number: int, folder: str) -> None:
    """Be a host with a worker of Spark, until this process is ended."""
    Network.join(door, number)
    os.environ |= {"SPARK_LOCAL_IP": Network.address(number), "SPARK_WORKER_DIR": f"{folder}/{number}"}
    _await_master()
    address, cores = Network.address(number), str(CORES)
    url = f"spark://{Network.address(0)}:{MASTER_PORT}"
    arguments = ["-h", address, "-c", cores, "-m", "3g", url]
    with daemon("org.apache.spark.deploy.worker.Worker", *arguments, folder=folder) as worker:
        worker.wait()


@contextlib.contextmanager
def daemon(name: str, *arguments: str, folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark, whose output goes to a file of ``folder``; it ends with this one, however that ends."""
    import pyspark

    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with open(f"{folder}/{name.rpartition('.')[2]}-{os.getpid()}.log", "wb") as log:
        command = [launcher, name, *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, preexec_fn=die_with_parent)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def _await_master() -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((Network.address(0), MASTER_PORT), 1).close()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"Spark's master did not come up within {START_SECONDS:.0f} s")
        time.sleep(0.2)


def _events(cut_off: Any, only: str) -> Iterator[Event]:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from tfos_magic import TFCluster

    conf = {"cores.max": str(2 * CORES), "executor.cores": str(CORES), "executor.memory": "900m", "ui.enabled": "false"}
    conf |= {"driver.host": Network.address(0), "ui.showConsoleProgress": "false", "log.level": "ERROR"}
    builder = SparkSession.builder.master(f"spark://{Network.address(0)}:{MASTER_PORT}")
    spark = builder.config(map={f"spark.{key}": value for key, value in conf.items()}).getOrCreate()
    features = F.array(*[F.rand(i).cast("float") for i in range(8)])
    train = spark.range(0, 96, 1, 4).select(features.alias("x"), (F.col("id") % 2).cast("float").alias("y"))
    with TFCluster(spark, workers=2, start_timeout=START_SECONDS) as cluster:
        hosts = Hosts(cluster, cut_off)
        expected, event = _run(hosts, train, "nothing", lambda: None)
        yield event
        for text, act in ((text, act) for text, act in _faults(hosts).items() if only in text):
            results, event = _run(hosts, train, text, act)
            if results is not None:
                pairs = zip(results["weights"], expected["weights"], strict=True)
                event.furthest = max(float(abs(one - other).max()) for one, other in pairs)
            yield event
    spark.stop()


def _faults(hosts: Hosts) -> dict[str, Callable[[], None]]:
    """By what is said of them. Each happens to a run of its own, in its second epoch."""
    return {
        "a host cut off for 3 s": lambda: hosts.cut(1, 3),
        "a host cut off for 10 s": lambda: hosts.cut(1, 10),
        "a trainer killed": lambda: hosts.kill(1, "trainer"),
        "an agent killed": lambda: hosts.kill(1, "agent"),
        "an executor killed": lambda: hosts.kill(1, "executor"),
        "scaled to 3 workers": lambda: hosts.cluster.scale(3),
        "scaled to 2 workers": lambda: hosts.cluster.scale(2),
        "a host gone": lambda: hosts.cut(1),
        "the other host gone as well": lambda: hosts.cut(0),
    }


def _run(hosts: Hosts, train: Any, done: str, act: Callable[[], None]) -> tuple[Any, Event]:
    from tfos_magic.errors import TFOSError

    screen = Screen(lambda state: state.epoch == 1 and state.step >= 3, act)
    began, event, results = time.monotonic(), Event(done), None
    try:
        results = hosts.cluster.run(
            CELL,
            frames={"train": train},
            names={"epochs": EPOCHS},
            label="y",
            batch_size=16,
            shuffle=False,
            seed=7,
            checkpoint_every=2,
            outputs=["weights"],
            observer=screen,
        )
    except TFOSError as error:
        event.error = str(error)
    event.seconds, event.silent = time.monotonic() - began, screen.silent
    waits = [text for _, text in screen.shown if "waiting for" in text]
    last = {text.partition(" (")[0]: text for text in waits}  # of each wait, how it ended
    event.told = [*screen.state.notices, *last.values()]
    return results, event


def measure(link: Link, only: str, show: Callable[[Event], None]) -> list[Event]:
    """Set the hosts up, have everything happen, and give the events, each shown as it comes."""
    context = multiprocessing.get_context("spawn")
    events: list[Event] = []
    with tempfile.TemporaryDirectory() as folder, Network(3, link) as network:
        ours, theirs = context.Pipe()
        hosts = [context.Process(target=be_worker, args=(network.door, number, folder)) for number in (1, 2)]
        driver = context.Process(target=drive, args=(theirs, network.door, network.cut_off, folder, only))
        for process in (*hosts, driver):
            process.start()
        theirs.close()
        with contextlib.suppress(EOFError):
            while (event := ours.recv()) is not None:
                events.append(event)
                show(event)
        driver.join(60)
        if driver.exitcode != 0:
            raise SystemExit(f"the notebook's host ended by itself (exit code {driver.exitcode}): see above")
        for process in (driver, *hosts):
            process.terminate()
            process.join(30)
    return events


def show(event: Event) -> None:
    weights = "" if event.furthest is None else f"{event.furthest:.1e}"
    print(f"{event.done:30}{event.seconds:9.1f}{event.silent:9.1f}{weights:>12}")
    for text in (*event.told, event.error):
        if text:
            print(f"    {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1000, help="megabits per second of each host's link")
    parser.add_argument("--only", default="", help="faults whose names have this in them")
    parser.add_argument("--json", action="store_true", help="print the events as JSON")
    options = parser.parse_args()
    if not available():
        raise SystemExit("hosts.py makes network namespaces: run it as root on Linux, with /dev/net/tun.")
    link = Link(options.rate * 1e6)
    if options.json:
        print(json.dumps([asdict(event) for event in measure(link, options.only, lambda event: None)]))
        return
    print(f"{'what was done':30}{'seconds':>9}{'silent':>9}{'weights':>12}\n")
    measure(link, options.only, show)


if __name__ == "__main__":
    main()
