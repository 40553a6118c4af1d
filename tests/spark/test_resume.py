"""A run whose cluster died goes on in another cluster, from checkpoints that only the kernel can reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.spark.test_shuffle import Notices
from tfos_magic import TFCluster
from tfos_magic.errors import TFOSError, UsageError
from tfos_magic.spark import planning

CELL = """
import os, signal
import keras
import numpy as np

keras.utils.set_random_seed(3)
random = np.random.default_rng(5)
x = random.normal(size=(301, 7)).astype("float32")
y = (x[:, 0] + x[:, 1] > 0).astype("int64")
model = keras.Sequential(
    [keras.Input((7,)), keras.layers.Dense(16, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
begun = []


def watch(epoch, logs):
    begun.append(epoch)


def kill(step, logs):
    if deadly and begun[-1] == 3 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)


watcher = keras.callbacks.LambdaCallback(on_epoch_begin=watch, on_train_batch_end=kill)
history = model.fit(x, y, batch_size=64, epochs=5, verbose=0, callbacks=[watcher])
weights = model.get_weights()
"""
OUTPUTS = ["weights", "history", "begun"]


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_run_whose_cluster_died_ends_in_another_with_the_weights_it_would_have_had(
    local_session: SparkSession,
) -> None:
    where = f"memory://{uuid4().hex}"
    with (
        TFCluster(local_session, workers=2) as first,
        pytest.raises(TFOSError),
    ):
        first.run(CELL, names={"deadly": True}, checkpoint_dir=where, max_restarts=0)
    with TFCluster(local_session, workers=2) as second:
        resumed = second.run(CELL, names={"deadly": False}, checkpoint_dir=where, resume=True, outputs=OUTPUTS)
        whole = second.run(CELL, names={"deadly": False}, outputs=OUTPUTS)
        with pytest.raises(UsageError, match="checkpoint_dir"):
            second.run(CELL, names={"deadly": False}, resume=True)
    assert resumed["begun"] == [3, 4]
    assert whole["begun"] == [0, 1, 2, 3, 4]
    for mine, expected in zip(resumed["weights"], whole["weights"], strict=True):
        assert np.abs(mine - expected).max() <= 1e-6
    np.testing.assert_allclose(resumed["history"].history["loss"], whole["history"].history["loss"], atol=1e-6)


FED = """
import os, signal
import keras

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
trained = []


def note(step, logs):
    trained[-1].append(step)
    if deadly and trained[-1] == list(range(6)) and len(trained) == 2:
        os.kill(os.getpid(), signal.SIGKILL)


watcher = keras.callbacks.LambdaCallback(
    on_epoch_begin=lambda epoch, logs: trained.append([]), on_train_batch_end=note)
pairs = train.map(lambda row: (row["x"] / 300, row["x"] / 200))
history = model.fit(pairs, epochs=3, verbose=0, callbacks=[watcher]).epoch
"""


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_fed_run_goes_back_to_the_beginning_of_an_epoch_whose_steps_have_other_rows_now(
    local_session: SparkSession,
) -> None:
    where, rows = f"memory://{uuid4().hex}", local_session.range(300).selectExpr("cast(id as float) as x")
    common = {"frames": {"train": rows}, "checkpoint_dir": where}
    with TFCluster(local_session, workers=2) as first, pytest.raises(TFOSError):
        first.run(FED, names={"deadly": True}, checkpoint_every=4, max_restarts=0, **common)
    with TFCluster(local_session, workers=1) as second:
        told = Notices()
        resumed = second.run(
            FED, names={"deadly": False}, resume=True, outputs=["trained", "history"], observer=told, **common
        )
    assert [len(steps) for steps in resumed["trained"]] == [10, 10]
    assert resumed["history"] == [0, 1, 2]
    (notice,) = [text for text in told.texts if "goes back" in text]
    assert "epoch 2, step 5" in notice or "epoch 2, step 3" in notice
    assert "1 worker instead of 2" in notice
    assert notice.endswith("It goes back to epoch 2, and may end with other weights than an undisturbed run.")


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_fed_run_goes_on_within_an_epoch_in_a_session_that_has_other_cores(
    local_session: SparkSession, tmp_path: Path
) -> None:
    local_session.range(300, numPartitions=8).selectExpr("cast(id as float) as x").write.parquet(str(tmp_path / "rows"))
    where = f"memory://{uuid4().hex}"

    def train(cluster: TFCluster, parallelism: int, deadly: bool, **options: Any) -> Any:
        local_session.conf.set(planning.SETTING, str(parallelism))
        frames = {"train": local_session.read.parquet(str(tmp_path / "rows"))}
        outputs = ["trained", "model"]
        return cluster.run(
            FED, names={"deadly": deadly}, frames=frames, seed=7, max_restarts=0, outputs=outputs, **options
        )

    try:
        with TFCluster(local_session, workers=2) as first, pytest.raises(TFOSError):
            train(first, 4, True, checkpoint_dir=where, checkpoint_every=4)
        with TFCluster(local_session, workers=2) as second:
            told = Notices()
            resumed = train(second, 2, False, checkpoint_dir=where, resume=True, observer=told)
            whole = train(second, 4, False)
    finally:
        local_session.conf.unset(planning.SETTING)
    assert len(resumed["trained"][0]) < 10, "the epoch was begun anew"
    assert not [text for text in told.texts if "goes back" in text or "instead of" in text]
    for mine, expected in zip(resumed["model"].get_weights(), whole["model"].get_weights(), strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-6)
