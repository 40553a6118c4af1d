"""The three strategies on a Spark cluster that has a parameter server: the same cell learns as well with each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from sklearn.datasets import load_digits

from tests.faults.cells import Watch
from tests.soak import every
from tfos_magic import TFCluster
from tfos_magic.errors import WorkerLost

# The quickstart's model and data, with fewer epochs.
DIGITS = """
import keras

keras.utils.set_random_seed(1)
model = keras.Sequential([
    keras.Input((64,)),
    keras.layers.Rescaling(1 / 16),
    keras.layers.Reshape((8, 8, 1)),
    keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
    keras.layers.MaxPooling2D(),
    keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
    keras.layers.Flatten(),
    keras.layers.Dense(10),
])
model.compile(
    optimizer=keras.optimizers.Adam(3e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(train, epochs=15, verbose=0)
loss, accuracy = model.evaluate(x, y, verbose=0)
"""
TRAINED = 1400


@pytest.fixture(scope="module")
def digits(local_session: SparkSession) -> tuple[DataFrame, dict[str, Any]]:
    data = load_digits()
    order = np.random.default_rng(1).permutation(len(data.target))
    x, y = data.data[order].astype("float32"), data.target[order]
    rows = pd.DataFrame({"pixels": [row.tolist() for row in x[:TRAINED]], "digit": y[:TRAINED]})
    return local_session.createDataFrame(rows).repartition(2), {"x": x[TRAINED:], "y": y[TRAINED:]}


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=2, servers=1) as started:
        yield started


@pytest.fixture(scope="module")
def learn(cluster: TFCluster, digits: tuple[DataFrame, dict[str, Any]]) -> Any:
    def learn(strategy: str, **options: Any) -> dict[str, Any]:
        frame, unseen = digits
        return cluster.run(
            DIGITS,
            names=unseen,
            frames={"train": frame},
            features=["pixels"],
            label="digit",
            batch_size=64,
            outputs=["accuracy", "history"],
            strategy=strategy,
            options=options,
        )

    return learn


@pytest.fixture(scope="module")
def expected(learn: Any) -> float:
    """Accuracy on unseen digits with strategy ``sync``."""
    return float(learn("sync")["accuracy"])


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [("async", {}), ("local", {"sync_every": 4}), ("local", {"sync_every": 8, "outer_momentum": 0.5})],
)
def test_digits_are_known_as_well_as_with_sync(
    learn: Any, expected: float, strategy: str, options: dict[str, Any]
) -> None:
    assert expected > 0.9
    assert learn(strategy, **options)["accuracy"] >= expected - 0.02


def test_status_lists_the_servers_after_the_workers(cluster: TFCluster) -> None:
    assert [line.role for line in cluster.status().workers] == ["worker", "worker", "ps"]
    assert [worker.rank for worker in cluster.workers] == [0, 1]
    assert [server.rank for server in cluster.servers] == [2]


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_worker_that_is_killed_does_not_end_an_asynchronous_run(cluster: TFCluster) -> None:
    cell = """
import os, signal
import keras
import numpy as np
import tfos_magic

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")


def kill(epoch, logs):
    if epoch == 2 and tfos_magic.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


history = model.fit(np.ones((64, 4), "float32"), np.zeros((64, 2), "float32"), batch_size=8, epochs=6, verbose=0,
                    callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=kill)])
epochs = len(history.history["loss"])
"""
    results = cluster.run(cell, outputs=["epochs"], strategy="async", max_restarts=0)
    assert results["epochs"] == 6
    assert cluster.run("answer = 6 * 7", outputs=["answer"])["answer"] == 42


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_trainer_in_the_place_of_a_killed_one_takes_part_in_the_run(cluster: TFCluster) -> None:
    cell = """
import os, signal, time
import keras
import numpy as np
import tfos_magic

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
begun = []


def begin(epoch, logs):
    begun.append(epoch)
    if epoch == 2 and tfos_magic.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if begun[0] > 2 and len(begun) == 3:
        print("the newcomer was there from epoch", begun[0])
        model.stop_training = True
    time.sleep(0.05)


model.fit(np.ones((64, 4), "float32"), np.zeros((64, 2), "float32"), batch_size=8, epochs=10**6, verbose=0,
          callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=begin)])
epochs = len(begun)
"""
    results = cluster.run(cell, outputs=["epochs"], strategy="async", max_restarts=1)
    assert results["epochs"] > 5
    said = [line for line in cluster.logs()[1] if "the newcomer was there" in line]
    assert len(said) == 1
    assert cluster.run("answer = 6 * 7", outputs=["answer"])["answer"] == 42


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("lost", every(2, ["parameter server", "rank 0"]))
def test_an_asynchronous_run_that_cannot_go_on_ends_with_one_error_naming_who_was_lost(
    cluster: TFCluster, lost: str
) -> None:
    cell = """
import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 4), "float32"), np.zeros((64, 2), "float32"), batch_size=8, epochs=10**6, verbose=0)
"""
    victim = cluster.servers[0] if lost == "parameter server" else cluster.workers[0]
    killed: list[int] = []

    def kill(state: Any) -> bool:
        if not killed and len(state.history) > 1:
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)
        return False

    with pytest.raises(WorkerLost) as caught:
        cluster.run(cell, strategy="async", max_restarts=0, observer=Watch(until=kill))
    assert caught.value.rank == victim.rank
    assert "SIGKILL" in str(caught.value)
    assert ("it was a parameter server" in str(caught.value)) == (lost == "parameter server")
    assert cluster.run("answer = 6 * 7", outputs=["answer"])["answer"] == 42
