"""A cell gets a DataFrame's rows shuffled: each once an epoch, and in the same order again for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tfos_magic import TFCluster
from tfos_magic.errors import UsageError, WorkerError

ROWS = 301
LOOK = """
import numpy as np
epochs = [np.concatenate([batch["id"].numpy() for batch in train]) for _ in range(2)]
"""
FIT = """
import keras
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
at = [0]


def fail(step, logs):
    at[0] += 1
    if failing and at[0] == 13:
        raise OSError("as asked")


watch = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
history = model.fit(train, epochs=4, verbose=0, callbacks=[watch])
weights = model.get_weights()
"""


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=2) as started:
        yield started


@pytest.fixture(scope="module")
def frame(local_session: SparkSession) -> DataFrame:
    features = F.array(*[F.sin(F.col("id") * k).cast("float") for k in range(1, 5)])
    return local_session.range(0, ROWS, 1, 3).select("id", features.alias("x"))


def test_every_worker_gets_its_rows_in_another_order_each_epoch_and_the_same_for_the_same_seed(
    cluster: TFCluster, frame: DataFrame
) -> None:
    def look(**how: Any) -> Any:
        return cluster.run(LOOK, frames={"train": frame}, batch_size=64, outputs=["epochs"], **how)["epochs"]

    first, again, other, plain = look(seed=5), look(seed=5), look(seed=6), look(shuffle=False)
    rows = sorted(plain[0].tolist())
    assert len(rows) in (ROWS // 2, ROWS // 2 + 1)
    assert [sorted(epoch.tolist()) for epoch in (*first, *other)] == [rows] * 4
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert np.array_equal(plain[0], plain[1])
    orders = {tuple(epoch.tolist()) for epoch in (*first, *other, plain[0])}
    assert len(orders) == 5


@pytest.mark.timeout(240)
def test_a_shuffled_run_that_goes_on_in_the_middle_of_an_epoch_ends_with_the_weights_it_would_have_had(
    cluster: TFCluster, frame: DataFrame
) -> None:
    def fit(failing: bool = False, **how: Any) -> Any:
        data = frame.select("x", F.col("id").cast("float").alias("y"))
        return cluster.run(
            FIT,
            names={"failing": failing},
            frames={"train": data},
            label="y",
            batch_size=64,
            outputs=["weights", "history"],
            **how,
        )

    where = f"memory://{uuid4().hex}"
    with pytest.raises(WorkerError, match="as asked"):
        fit(True, checkpoint_dir=where, checkpoint_every=2, seed=9)
    with pytest.raises(UsageError, match="another seed"):
        fit(checkpoint_dir=where, resume=True, seed=1)
    resumed, whole = fit(checkpoint_dir=where, resume=True), fit(seed=9)
    for mine, expected in zip(resumed["weights"], whole["weights"], strict=True):
        assert np.abs(mine - expected).max() <= 1e-6
    losses = [results["history"].history["loss"] for results in (resumed, whole, fit(seed=10))]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[2] != losses[1]
