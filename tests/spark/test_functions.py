"""Functions on a cluster, and runs by their handles, in a program without magics."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from pyspark.sql import SparkSession

import tfos_magic
import tfos_magic.frames as tfs
from tests.soak import every
from tfos_magic import TFCluster
from tfos_magic.cluster.shared import SHARED
from tfos_magic.errors import ClusterError, DataError, RunInterrupted, UsageError, WorkerError
from tfos_magic.values.suggestions import choosing

ROWS = 202
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as functions of a program's main module are


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=2) as made:
        yield made


def rows(spark: SparkSession) -> Any:
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    return spark.createDataFrame([(row.tolist(), float(row.sum())) for row in x], "x array<double>, y double")


def fit(data: Any, rate: float, epochs: int = 2) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    model.fit(data, epochs=epochs, verbose=0)
    return model.get_weights()


CELL = "weights = fit(data, 0.1)"
OPTIONS: dict[str, Any] = {"label": "y", "batch_size": 32, "shuffle": False}


def test_a_cell_a_function_and_a_decorated_function_train_alike(
    cluster: TFCluster, local_session: SparkSession
) -> None:
    frame = rows(local_session)
    given = {"frames": {"data": frame}, **OPTIONS}
    by_text = cluster.run(CELL, names={"fit": fit}, outputs=["weights"], **given)["weights"]
    by_function = cluster.run(fit, names={"rate": 0.1}, **given)
    decorated = tfos_magic.distributed(cluster=cluster, **OPTIONS)(fit)
    for weights in (by_function, decorated(frame, 0.1), decorated.submit(frame, rate=0.1).returned):
        assert all(np.array_equal(mine, other) for mine, other in zip(weights, by_text, strict=True))
    assert decorated.__name__ == "fit"


def test_the_network_between_workers_is_measured_where_nothing_runs(cluster: TFCluster, capsys: Any) -> None:
    before = {worker.pid for worker in cluster.workers}
    bench = cluster.netbench(1_000_000, seconds=0.4)
    assert [pair.workers for pair in bench.pairs] == [(0, 1)]
    assert bench.pairs[0].wire == "shared memory"
    assert not bench.pairs[0].encrypted
    assert 0 < bench.pairs[0].timings["one number"].p50 < bench.pairs[0].timings["skewed"].p50
    assert {name: timing.bytes for name, timing in bench.sums.items()} == {"none": 1_000_000, "bfloat16": 500_000}
    assert capsys.readouterr().out.splitlines() == ["round 1 of 1: workers 0-1", "sums over 2 workers"]
    assert {worker.pid for worker in cluster.workers} == before
    run = cluster.submit("import time\ntime.sleep(600)", strategy="none")
    with pytest.raises(ClusterError, match="wait for it or stop it, then measure the network"):
        cluster.netbench()
    run.stop()
    assert cluster.run(lambda: 7) == 7


@pytest.mark.soak
def test_a_matrix_of_columns_and_weights_of_rows_train_as_in_one_process(
    cluster: TFCluster, local_session: SparkSession
) -> None:
    import tensorflow as tf

    values = np.random.default_rng(0).normal(size=(ROWS, 5))
    names = ["a", "b", "c", "y", "w"]
    values[:, 4] = np.arange(ROWS) % 4
    frame = local_session.createDataFrame(values.tolist(), names)
    given = {"features": ["c", "a", "b"], "weight": "w", "matrix": True, **OPTIONS}
    weights = cluster.run(fit, names={"rate": 0.1}, frames={"data": frame}, **given)
    plain = tf.data.Dataset.from_tensor_slices((values[:, [2, 0, 1]].astype("float32"), values[:, 3], values[:, 4]))
    expected = fit(plain.batch(32), 0.1)
    assert max(np.abs(mine - other).max() for mine, other in zip(weights, expected, strict=True)) < 1e-6
    with pytest.raises(DataError, match="a matrix holds numbers"):
        cluster.run(fit, names={"rate": 1}, frames={"data": frame.selectExpr("'a' t", "y")}, label="y", matrix=True)


def fit_as_suggested(data: Any) -> Any:
    return fit(data, tfos_magic.suggest_float("rate", 1e-3, 1.0, log=True))


@pytest.mark.soak
def test_a_run_has_the_numbers_that_were_chosen_for_what_its_code_suggests(
    cluster: TFCluster, local_session: SparkSession
) -> None:
    frame = rows(local_session)
    decorated = tfos_magic.distributed(cluster=cluster, **OPTIONS)(fit_as_suggested)
    with choosing({"rate": 0.1}):
        run = decorated.submit(frame)
    expected = cluster.run(fit, names={"rate": 0.1}, frames={"data": frame}, **OPTIONS)
    assert all(np.array_equal(mine, other) for mine, other in zip(run.returned, expected, strict=True))
    assert run.state.settings["rate"] == "0.1"
    assert not np.array_equal(decorated(frame)[0], expected[0])


COLUMNS = """
import keras
model = keras.Sequential([LAYERS])
model.compile("sgd", "mse")
model.fit(data, epochs=1, verbose=0)
"""


@pytest.mark.soak
def test_a_model_predicts_from_the_columns_that_it_was_trained_on(
    cluster: TFCluster, local_session: SparkSession
) -> None:
    frame = local_session.range(64).selectExpr("id", "id * 0.01D a", "1D b", "id * 0.02D y")
    cell = COLUMNS.replace("LAYERS", "keras.layers.Dense(1)")
    given = {"frames": {"data": frame}, "features": ["b", "a"], **OPTIONS}
    model = cluster.run(cell, outputs=["model"], matrix=True, **given)["model"]
    made = tfs.predict(model, frame).orderBy("id").toPandas()
    expected = model.predict(made[["b", "a"]].to_numpy(), verbose=0)
    np.testing.assert_allclose(np.stack(made["prediction"]), expected, rtol=1e-6)
    with pytest.raises(UsageError, match="trained on the columns b, a, and the DataFrame has no 'b'"):
        tfs.predict(model, frame.drop("b"))
    assert tfs.predict(model, frame.drop("b"), features=["a", "y"]).columns[-1] == "prediction"


@pytest.mark.parametrize(
    ("layers", "features", "words"),
    every(
        4,
        [
            ("keras.layers.Dense(1)", ["a", "b"], r"dict of tensors.*\(a, b\).*--matrix .* \(rows, 2\)"),
            ("keras.Input((2,)), keras.layers.Dense(1)", ["a", "b"], "--matrix"),
            ("keras.layers.Normalization(mean=0.0, variance=1.0)", ["a", "b"], "--matrix"),
            ("keras.layers.Dense(1)", ["a"], r"shape \(rows,\): a\. --matrix .* shape \(rows, 1\)"),
        ],
    ),
)
def test_a_model_of_one_input_that_meets_single_columns_is_told_of_the_matrix(
    cluster: TFCluster, local_session: SparkSession, layers: str, features: list[str], words: str
) -> None:
    frame = local_session.range(64).selectExpr("id * 0.01 a", "1.0 b", "id * 0.02 y")
    given = {"frames": {"data": frame}, "features": features, **OPTIONS}
    with pytest.raises(WorkerError, match=words):
        cluster.run(COLUMNS.replace("LAYERS", layers), **given)


@pytest.mark.soak
def test_runs_follow_one_another_and_their_handles_tell_of_them(
    cluster: TFCluster, local_session: SparkSession
) -> None:
    frames = {"data": rows(local_session)}
    first, second, third = (
        cluster.submit(fit, name=f"rate {rate}", frames=frames, names={"rate": rate, "epochs": 3}, **OPTIONS)
        for rate in (0.1, 0.01, 0.001)
    )
    heard: list[str] = []
    third.on_change(lambda run: heard.append(run.phase.value))
    assert len(third.wait(60)) == 4
    assert first.done
    assert second.done
    assert (heard[0], heard[-1]) == ("queued", "done")
    assert second.history[["fit", "epoch"]].values.tolist() == [[0, 0], [0, 1], [0, 2]]
    assert first.history["loss"].iloc[-1] < third.history["loss"].iloc[-1]
    assert repr(second).startswith("<rate 0.01: Trained on 2 workers")


@pytest.mark.soak
def test_a_run_that_waits_may_be_stopped_and_the_others_go_on(cluster: TFCluster, local_session: SparkSession) -> None:
    frames = {"data": rows(local_session)}
    options = {"frames": frames, **OPTIONS}
    long = cluster.submit(fit, names={"rate": 0.01, "epochs": 100_000}, **options)
    waiting = cluster.submit(fit, names={"rate": 0.01}, **options)
    last = cluster.submit(fit, names={"rate": 0.01}, **options)
    waiting.stop()
    assert (waiting.phase, long.done, last.done) == ("stopped", False, False)
    long.stop()
    with pytest.raises(RunInterrupted):
        long.wait()
    assert len(last.returned) == 4


def test_mistakes_are_told_where_they_are_made(cluster: TFCluster, local_session: SparkSession) -> None:
    frame = rows(local_session)
    with pytest.raises(DataError, match="z"):
        cluster.submit(fit, frames={"data": frame}, names={"rate": 1.0}, label="z")
    with pytest.raises(UsageError, match="takes 'rate'"):
        cluster.submit(fit, frames={"data": frame})
    failed = cluster.submit("raise ValueError('on purpose')")
    with pytest.raises(WorkerError, match="on purpose"):
        failed.wait()
    with pytest.raises(UsageError, match="by its place alone"):
        tfos_magic.distributed(cluster=cluster)(lambda *args: args)(1, 2)


@pytest.mark.soak
def test_runs_end_with_their_cluster_and_it_takes_no_other_then(
    local_session: SparkSession, cluster: TFCluster
) -> None:
    cluster.stop()
    with TFCluster(local_session, workers=1) as made:
        runs = [made.submit("import time\nwhile True: time.sleep(0.01)") for _ in range(2)]
        made.wait_ready()
    assert [run.phase.value for run in runs] == ["stopped", "stopped"]
    with pytest.raises(ClusterError, match="accepts no run because it is stopped"):
        made.submit("x = 1")


@pytest.mark.soak
def test_a_cluster_goes_on_with_another_number_of_workers(local_session: SparkSession) -> None:
    frame = rows(local_session)
    with TFCluster(local_session, workers=1) as made:
        given = {"names": {"rate": 0.1}, "frames": {"data": frame}, **OPTIONS}
        alone = made.run(fit, **given)
        made.scale(3)
        assert (made.size, len(made.status().workers)) == (3, 3)
        assert not made.release(frame)  # of which the new workers have nothing yet
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(made.run(fit, **given), alone, strict=True))
        again = made.submit(fit, **given)
        assert again.wait()
        assert again.state.feeds["data"].reused
        assert (made.release(frame), made.release(frame)) == (True, False)
        again = made.submit(fit, **given)
        assert again.wait()
        assert not again.state.feeds["data"].reused
        with pytest.raises(ClusterError, match="9 workers and 1 feed slot asked"):
            made.scale(9)
        with pytest.raises(UsageError, match=r"workers is 3\.0: give a whole number"):
            made.scale(3.0)  # type: ignore[arg-type]
        run = made.submit("import time\nwhile True: time.sleep(0.01)", name="long")
        made.scale(2)  # of which a run that does not train knows nothing
        with pytest.raises(ClusterError, match="long is still running: wait for it or stop it, then release"):
            made.release(frame)
        run.stop()
        assert made.size == 3
        assert made.run("x = tfos.size()", outputs=["x"]) == {"x": 2}


@pytest.mark.soak
def test_without_a_cluster_of_its_own_a_function_runs_on_that_of_the_process(local_session: SparkSession) -> None:
    @tfos_magic.distributed(workers=1, **OPTIONS)
    def size(offset: int) -> int:
        return int(tfos_magic.size()) + offset

    @tfos_magic.distributed
    def forever() -> None:
        while True:
            time.sleep(0.01)

    try:
        assert size(10) == 11
        first = SHARED.cluster
        assert size(20) == 21
        assert SHARED.cluster is first
        assert SHARED.queue.runs == []
        runs = [forever.submit() for _ in range(2)]
    finally:
        assert SHARED.stop()
    assert [run.phase.value for run in runs] == ["stopped", "stopped"]
