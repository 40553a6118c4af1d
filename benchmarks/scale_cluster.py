"""Clusters of one size after another on this machine, and what they send and compute while a cell trains: for scale.py.

Each trains the same rows in the same global batches. Ranks are on one host, or each is told that the others are on
hosts of their own, addresses of the loopback, and so sums by TCP.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import psutil
from feed import PIXELS

from tfos_magic import TFCluster
from tfos_magic.transport.messages import Message, StartTrainer

BATCH, UNITS = 64, 64
WEIGHT_BYTES = 4 * ((PIXELS + 1) * UNITS + (UNITS + 1) * 10)
PLANS = ((1, 16), (2, 48), (6, 16), (6, 48))
"""Epochs of a run, and steps of each epoch. The first two runs feed their rows."""
IDLE_SECONDS = 5.0
START_SECONDS = 300.0
_TCP_INFO_BYTES, _BYTES_RECEIVED = 232, slice(128, 136)

CELL = """
import time
import keras
from scale_sums import Given
from tfos_magic.training import ranks

def read():
    return [collectives.sent, given.calls, given.bytes, time.process_time_ns() // 1000]

collectives = ranks.context().collectives
model = keras.Sequential([keras.layers.Dense(units, activation="relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
with Given().counting() as given:
    model.fit(rows, epochs=1, steps_per_epoch=2, verbose=0)
    before, began = read(), time.perf_counter()
    model.fit(rows, epochs=epochs, verbose=0)
    taken, seconds = [now - then for now, then in zip(read(), before)], time.perf_counter() - began
by_rank = collectives.gather(taken).tolist()
"""


class Run(NamedTuple):
    """One run: of its second ``fit`` what each rank sent, by its own count, in how many calls and how many bytes of
    sockets, its processor and wall seconds; of the whole, what the kernel heard, and processor seconds."""

    workers: int
    apart: bool
    epochs: int
    steps: int
    sent: float
    calls: float
    socket_bytes: float
    trainers: float
    seconds: float
    heard: Heard
    spooled: tuple[int, int]

    @property
    def all_steps(self) -> int:
        return self.epochs * self.steps


class Heard(NamedTuple):
    """What came to the kernel in ``seconds``: messages by kind, bytes of TCP; its CPU seconds, and those of agents."""

    seconds: float
    kinds: Counter[str]
    bytes: int
    kernel: float
    agents: float

    @property
    def messages(self) -> int:
        return self.kinds.total()


class Apart(TFCluster):
    """A cluster whose ranks take each other to be on hosts of their own."""

    def tell(self, rank: int, message: Message) -> None:
        if isinstance(message, StartTrainer):
            ports = [address.rpartition(":")[2] for address in message.addresses]
            message = dataclasses.replace(message, addresses=[f"127.0.0.{k}:{p}" for k, p in enumerate(ports, 1)])
        super().tell(rank, message)


class Ear:
    """Hears what the workers of ``cluster`` tell its kernel, which is this process."""

    def __init__(self, cluster: TFCluster) -> None:
        self._cluster = cluster
        self._kinds: Counter[str] = Counter()
        cluster.hearers.append(lambda peer, message: self._kinds.update([type(message).__name__]))
        self.begin()

    def begin(self) -> None:
        self._before = self._now()

    def end(self) -> Heard:
        now, before = self._now(), self._before
        return Heard(now[0] - before[0], now[1] - before[1], *(n - b for n, b in zip(now[2:], before[2:], strict=True)))

    def _now(self) -> Heard:
        agents = sum(sum(psutil.Process(worker.agent.pid).cpu_times()[:2]) for worker in self._cluster.workers)
        return Heard(time.monotonic(), self._kinds.copy(), self._received(), time.process_time(), agents)

    def _received(self) -> int:
        """Bytes that have come over the connections of the control socket, as the system counts them."""
        port, total = int(self._cluster.endpoint.rpartition(":")[2]), 0
        for connection in psutil.Process().net_connections("tcp"):
            if connection.laddr.port == port and connection.status == psutil.CONN_ESTABLISHED:
                with socket.socket(fileno=os.dup(connection.fd)) as peer:
                    told = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                total += int.from_bytes(told[_BYTES_RECEIVED], "little")
        return total


Cluster = tuple[Heard, list[Run]]


def split(runs: list[Run], field: str) -> tuple[float, float]:
    """What an epoch has of a field beside its steps, and what a step has, by the runs of a cluster."""
    table = np.array([[1, run.epochs, run.all_steps] for run in runs])
    _, epoch, step = np.linalg.lstsq(table, np.array([getattr(run, field) for run in runs]), rcond=None)[0]
    return float(epoch), float(step)


def measure(spark: Any, workers: int, apart: bool, frames: dict[int, Any]) -> Cluster:
    """What a cluster says while nothing runs, and its runs of all ``PLANS``."""
    with (Apart if apart else TFCluster)(spark, workers=workers, start_timeout=START_SECONDS) as cluster:
        runs = list(_runs(cluster, apart, frames))
        ear = Ear(cluster)
        time.sleep(IDLE_SECONDS)
        return ear.end(), runs


def _runs(cluster: TFCluster, apart: bool, frames: dict[int, Any]) -> Iterator[Run]:
    ear = Ear(cluster)
    for epochs, steps in PLANS:
        ear.begin()
        got = cluster.run(
            CELL,
            names={"epochs": epochs, "units": UNITS},
            frames={"rows": frames[steps]},
            label="label",
            batch_size=BATCH,
            seed=0,
            outputs=["by_rank", "seconds"],
        )
        heard = ear.end()
        sent, calls, given, micros = np.array(got["by_rank"]).reshape(cluster.size, -1).T
        spooled = _spooled(cluster)
        mean = float(sent.mean()), float(calls.mean()), float(given.mean())
        yield Run(cluster.size, apart, epochs, steps, *mean, float(micros.sum()) / 1e6, got["seconds"], heard, spooled)


def _spooled(cluster: TFCluster) -> tuple[int, int]:
    """Rows and bytes in the spools of all workers, as their next signs of life have them."""
    time.sleep(2.0)
    beats = [worker.beat for worker in cluster.workers]
    return sum(sum(beat.feeds.values()) for beat in beats), sum(beat.spool_bytes for beat in beats)
