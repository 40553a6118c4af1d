"""The control connection breaks for some seconds: nothing that was said meanwhile is lost or comes twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.faults.cells import Watch
from tests.faults.forwarder import Forwarder
from tfos_magic import TFCluster
from tfos_magic.cluster import worker_group
from tfos_magic.transport.control_server import ControlServer

EPOCHS, CUT_SECONDS = 60, 3.0
MB = 1 << 20

CELL = """
import time
import keras
import numpy as np
x = np.ones((32, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
breathe = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.02))
history = model.fit(x, x[:, :1], epochs=60, verbose=0, callbacks=[breathe])
"""


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Forwarder]]:
    """The lines that control sockets made in this test are reached through."""
    lines: list[Forwarder] = []

    class ThroughForwarder(ControlServer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            lines.append(Forwarder(self.endpoint))
            self.endpoint = lines[-1].endpoint

    monkeypatch.setattr(worker_group, "ControlServer", ThroughForwarder)
    yield lines
    for each in lines:
        each.close()


@pytest.mark.soak
def test_a_connection_cut_for_three_seconds_loses_nothing(spark: SparkSession, line: list[Forwarder]) -> None:
    with TFCluster(spark, workers=2) as cluster:
        agents = [worker.agent.pid for worker in cluster.workers]
        watch = Watch(until=lambda state: len(state.history) > 8)

        def cut_when_training() -> None:
            assert watch.reached.wait(60)
            line[0].swallow()
            time.sleep(0.3)  # so that some messages are on their way when the line breaks
            line[0].cut()
            time.sleep(CUT_SECONDS)
            line[0].mend()

        saboteur = threading.Thread(target=cut_when_training, name="saboteur")
        saboteur.start()
        results = cluster.run(CELL, outputs=["history"], observer=watch, max_restarts=0)
        assert not saboteur.is_alive(), "the run ended before the line was mended: it was not cut while it trained"
        assert line[0].swallowed
        assert len(results["history"].history["loss"]) == EPOCHS
        assert [metrics["loss"] for metrics in watch.state.history] == pytest.approx(results["history"].history["loss"])
        again = cluster.run(CELL.replace("epochs=60", "epochs=2"), outputs=["history"])
        assert len(again["history"].history["loss"]) == 2
        assert [worker.agent.pid for worker in cluster.workers] == agents


PRINTING = """
import time
line, end, printed = "x" * 1000, time.monotonic() + 6.0, 0
while time.monotonic() < end:
    print(line)
    printed += len(line) + 1
print("the last line")
"""


@pytest.mark.soak
def test_prints_wait_for_a_kernel_that_takes_none_and_fill_no_memory(
    spark: SparkSession, line: list[Forwarder]
) -> None:
    with TFCluster(spark, workers=1) as cluster:
        agent = psutil.Process(cluster.workers[0].agent.pid)
        before = agent.memory_info().rss
        watch = Watch(until=lambda state: state.printed > 0)
        run = cluster.submit(PRINTING, outputs=["printed"], observer=watch, max_restarts=0)
        assert watch.reached.wait(60)
        line[0].cut()
        threading.Timer(CUT_SECONDS, line[0].mend).start()
        most = before
        while not run.done:
            most = max(most, agent.memory_info().rss)
            time.sleep(0.05)
        assert run["printed"] > 40 * MB, "so little was printed that nothing had to wait"
        assert list(cluster.workers[0].log)[-1] == "the last line"
        assert most - before < 200 * MB
