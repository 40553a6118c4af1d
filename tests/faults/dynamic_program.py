"""A user's program on a standalone master with dynamic allocation: it trains, loses an executor, idles and ends, and
prints what happened as JSON. Run as its own process, since a process has one JVM.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.faults.cells import Watch, furthest, run
from tests.faults.executor_program import lose_executor, rows
from tests.jvm import EXECUTORS
from tfos_magic import TFCluster
from tfos_magic.cluster.preflight import examine
from tfos_magic.cluster.workers import ClusterPhase, ClusterSpec
from tfos_magic.errors import TFOSError

IDLE_SECONDS = 4
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.executorIdleTimeout": f"{IDLE_SECONDS}s",
    "spark.executor.cores": "1",
    "spark.executor.memory": "600m",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


SLOWLY = """
import keras, numpy as np, time
slowly = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.2))
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 1)), np.ones((8, 1)), epochs=1000, verbose=0, callbacks=[slowly])
"""


def main(master: str, folder: Path) -> dict[str, Any]:
    spark = SparkSession.builder.master(master).config(map=DYNAMIC | EXECUTORS).getOrCreate()
    outcome: dict[str, Any] = {"executors": [executors(spark)]}
    outcome["doctor"] = [[found.name, found.text, found.fix] for found in examine(spark, ClusterSpec(workers=2))]
    outcome["refused"] = [refusal(spark, workers=4), refusal(spark, workers=2, hold_slots=False)]
    data, watch = rows(spark), Watch()
    with TFCluster(spark, workers=2) as cluster:
        undisturbed, results = lose_executor(cluster, folder, data, watch)
        before = [worker.agent.pid for worker in cluster.workers]
        outcome["shrunk"] = reached(lambda: executors(spark) == 2)
        time.sleep(2 * IDLE_SECONDS)
        outcome["executors"].append(executors(spark))
        again = run(cluster, "pass", folder / "nothing", **data)
        outcome["stayed"] = before == [worker.agent.pid for worker in cluster.workers]
    with TFCluster(spark, workers=1, most_workers=2) as elastic:
        growing = elastic.submit(SLOWLY)
        outcome["grown"] = reached(lambda: elastic.size == 2)
        growing.stop()
    outcome["emptied"] = reached(lambda: executors(spark) == 0)
    idle = TFCluster(spark, workers=1, idle_timeout=IDLE_SECONDS).start()
    outcome["ended"] = reached(lambda: idle.phase is ClusterPhase.STOPPED)
    outcome["reason"] = str(idle.status().reason)
    return outcome | {
        "hosts": sorted({worker.agent.host for worker in cluster.workers}),
        "restarts": watch.state.restarts,
        "furthest": max(furthest(results, undisturbed), furthest(again, undisturbed)),
        "count": spark.range(9).count(),
    }


def executors(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().getExecutorIds().size())


def refusal(spark: SparkSession, **spec: Any) -> str:
    try:
        with TFCluster(spark, **spec):
            return ""
    except TFOSError as error:
        return str(error)


def reached(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
    return condition()


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        outcome = main(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps(outcome))
