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


@pytest.mark.soak
def test_every_item_has_all_rows_and_fresh_processes_and_a_run_to_be_watched(cluster: TFCluster, frame: Any) -> None:
    rates = [0.1, 0.01, 0.05, 0.2]
    together = cluster.map(fit, rates[:2], frames={"data": frame}, workers_per_item=2, **OPTIONS)
    mapped = cluster.map(fit, rates, frames={"data": frame}, **OPTIONS)
    assert sorted(mapped.as_completed()) == [0, 1, 2, 3]
    results = mapped.wait()
    assert len({process for _, _, process in results}) == 4
    assert {size for _, size, _ in results} == {1}
    assert {run.state.feeds["data"].rows for run in mapped.runs} == {ROWS}
    assert mapped.runs[3].history["loss"].is_monotonic_decreasing
    assert "4 of 4 items have ended" in repr(mapped)
    plain = cluster.run(fit, names={"rate": 0.01}, frames={"data": frame}, **OPTIONS)
    assert same(results[1][0], plain[0])
    assert not same(results[0][0], plain[0])
    for (weights, size, _), (alone, _, _) in zip(together, results, strict=False):
        assert size == 2
        assert same(weights, alone)


def test_an_item_that_fails_is_named_and_costs_no_other(cluster: TFCluster, local_session: SparkSession) -> None:
    mapped = cluster.map("import tfos_magic\nhalf = 1 / item, tfos_magic.rank()", [1, 0, 4], outputs=["half"])
    assert list(mapped.result(2)["half"]) == [0.25, 0]
    with pytest.raises(ItemError, match=r"items\[1\] = 0, on worker \d: ZeroDivisionError") as failure:
        mapped.wait()
    assert (failure.value.index, failure.value.item) == (1, 0)
    rates = local_session.readStream.format("rate").load().selectExpr("cast(value as float) as x")
    with pytest.raises(ItemError, match="DataFrame 'data' is a stream, and"):
        cluster.map("next(iter(data))", [1], frames={"data": rates}).wait()
    with pytest.raises(UsageError, match="the cluster has 3 workers"):
        cluster.map("x = item", [1], workers_per_item=4)
    with pytest.raises(UsageError, match="no items"):
        cluster.map("x = item", [])
    with pytest.raises(UsageError, match="'rate' is the item's name"):
        cluster.map(fit, [1], names={"rate": 2})


@pytest.mark.soak
def test_a_map_that_is_stopped_ends_what_is_under_way_and_begins_no_more(cluster: TFCluster) -> None:
    mapped = cluster.map("import time\nwhile True: time.sleep(0.01)", range(9))
    after = cluster.submit("x = 2", outputs=["x"])
    while sum(run.phase == "running" for run in mapped.runs) < 3:
        time.sleep(0.1)
    assert after.phase == "queued"
    with pytest.raises(TimeoutError, match="of 9 items have ended, 3 under way"):
        mapped.wait(0.1)
    mapped.stop()
    assert [(run.phase.value, run.state.error) for run in mapped.runs] == [("stopped", "")] * 9
    with pytest.raises(ItemError) as failure:
        mapped.result(8)
    assert isinstance(failure.value.cause, RunInterrupted)
    assert after["x"] == 2


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["agent_pid", "pid"])
def test_an_item_whose_worker_is_lost_is_run_again(
    local_session: SparkSession, cluster: TFCluster, frame: Any, tmp_path: Path, victim: str
) -> None:
    def work(item: int, data: Any) -> int:
        if item == 1 and not (tmp_path / "begun").exists():
            (tmp_path / "begun").touch()
            time.sleep(120)
        return item + sum(len(y) for _, y in data)

    cluster.stop()
    with TFCluster(local_session, workers=3) as made:
        mapped = made.map(work, range(6), frames={"data": frame}, **OPTIONS)
        while not (tmp_path / "begun").exists():
            time.sleep(0.1)
        (rank,) = mapped.ranks(1)
        pid = getattr(made.status().workers[rank], victim)
        assert pid > 0  # 0 would be the tests' own process group
        os.kill(pid, signal.SIGKILL)
        assert list(mapped) == [item + ROWS for item in range(6)]
        assert any("restarted" in notice for notice in mapped.runs[1].state.notices)
        assert made.run("x = 1", outputs=["x"]) == {"x": 1}
