"""``cluster.map``: an item each to whichever workers are free."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from pyspark.sql import SparkSession

from tfos_magic import TFCluster
from tfos_magic.errors import ItemError, RunInterrupted, UsageError

ROWS = 101
OPTIONS: dict[str, Any] = {"label": "y", "batch_size": 16, "shuffle": False, "seed": 3}
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as functions of a program's main module are


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=3) as made:
        yield made


@pytest.fixture(scope="module")
def frame(local_session: SparkSession) -> Any:
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    rows = [(row.tolist(), float(row.sum())) for row in x]
    return local_session.createDataFrame(rows, "x array<double>, y double").repartition(3).cache()


def fit(rate: float, data: Any) -> Any:
    import keras

    import tfos_magic

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    model.fit(data, epochs=2, verbose=0)
    return model.get_weights(), tfos_magic.size(), os.getpid()


def same(weights: Any, others: Any) -> bool:
    return all(np.allclose(mine, other, atol=1e-6) for mine, other in zip(weights, others, strict=True))


def test_every_item_has_all_rows_and_fresh_processes_and_a_run_to_be_watched(cluster: TFCluster, frame: Any) -> None:
    rates = [0.1, 0.01, 0.05, 0.2, 0.3]
    together = cluster.map(fit, rates[:3], frames={"data": frame}, workers_per_item=2, **OPTIONS)
    mapped = cluster.map(fit, rates, frames={"data": frame}, **OPTIONS)
    assert sorted(mapped.as_completed()) == [0, 1, 2, 3, 4]
    results = mapped.wait()
    assert len({process for _, _, process in results}) == 5
    assert {size for _, size, _ in results} == {1}
    assert {run.state.feeds["data"].rows for run in mapped.runs} == {ROWS}
    assert mapped.runs[3].history["loss"].is_monotonic_decreasing
    assert "5 of 5 items have ended" in repr(mapped)
    plain = cluster.run(fit, names={"rate": 0.01}, frames={"data": frame}, **OPTIONS)
    assert same(results[1][0], plain[0])
    assert not same(results[0][0], plain[0])
    for (weights, size, _), (alone, _, _) in zip(together, results, strict=False):
        assert size == 2
        assert same(weights, alone)


def test_an_item_that_fails_is_named_and_costs_no_other(cluster: TFCluster) -> None:
    mapped = cluster.map("import tfos_magic\nhalf = 1 / item, tfos_magic.rank()", [1, 0, 4], outputs=["half"])
    assert list(mapped.result(2)["half"]) == [0.25, 0]
    with pytest.raises(ItemError, match=r"Item 1, 0 on worker \d: ZeroDivisionError") as failure:
        mapped.wait()
    assert (failure.value.index, failure.value.item) == (1, 0)
    with pytest.raises(UsageError, match="the cluster has 3 workers"):
        cluster.map("x = item", [1], workers_per_item=4)
    with pytest.raises(UsageError, match="no items"):
        cluster.map("x = item", [])
    with pytest.raises(UsageError, match="'rate' is the item's name"):
        cluster.map(fit, [1], names={"rate": 2})


@pytest.mark.parametrize("victim", ["trainer", "agent"])
def test_an_item_whose_worker_is_lost_is_run_again(cluster: TFCluster, frame: Any, tmp_path: Path, victim: str) -> None:
    def die_once(item: int, data: Any) -> int:
        mark = tmp_path / "died"
        if item == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid() if victim == "trainer" else agents[int(os.environ["TFOS_TEST_RANK"])], signal.SIGKILL)
            time.sleep(60)
        return item + sum(len(y) for _, y in data)

    agents = [worker.agent_pid for worker in cluster.status().workers]
    source = "import os, psutil\nos.environ['TFOS_TEST_RANK'] = str(next(r for r, a in enumerate(agents) if a in "
    source += "{p.pid for p in psutil.Process().parents()} | {os.getppid()}))\nvalue = die_once(item, data)"
    names = {"die_once": die_once, "agents": agents}
    if victim == "trainer":
        source = "value = die_once(item, data)"
    mapped = cluster.map(source, range(6), names=names, frames={"data": frame}, outputs=["value"], **OPTIONS)
    assert [result["value"] for result in mapped] == [item + ROWS for item in range(6)]
    assert sum("restarted" in notice for notice in mapped.runs[1].state.notices) == 1
    assert cluster.run("x = 1", outputs=["x"]) == {"x": 1}


def test_a_map_that_is_stopped_ends_what_is_under_way_and_begins_no_more(cluster: TFCluster) -> None:
    mapped = cluster.map("import time\nwhile True: time.sleep(0.01)", range(9))
    after = cluster.submit("x = 2", outputs=["x"])
    while sum(run.phase == "running" for run in mapped.runs) < 3:
        time.sleep(0.1)
    assert after.phase == "queued"
    with pytest.raises(TimeoutError, match="0 of 9 items have ended, 3 under way"):
        mapped.wait(0.1)
    mapped.stop()
    assert {run.phase.value for run in mapped.runs} == {"stopped"}
    with pytest.raises(ItemError) as failure:
        mapped.result(8)
    assert isinstance(failure.value.cause, RunInterrupted)
    assert after["x"] == 2
