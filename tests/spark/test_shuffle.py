"""A cell gets a DataFrame's rows shuffled: each once an epoch, and in the same order again for the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.soak import every
from tfos_magic import TFCluster
from tfos_magic.cluster.runs.request import Observer
from tfos_magic.cluster.runs.state import RunState
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


class Notices(Observer):
    """What a run's panel says beside its figures."""

    texts: tuple[str, ...] = ()

    def update(self, state: RunState) -> None:
        self.texts = tuple(state.notices)


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=2) as started:
        yield started


@pytest.fixture(scope="module")
def frame(local_session: SparkSession) -> DataFrame:
    features = F.array(*[F.sin(F.col("id") * k).cast("float") for k in range(1, 5)])
    return local_session.range(0, ROWS, 1, 3).select("id", features.alias("x"))


@pytest.mark.soak
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


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_shuffled_run_that_goes_on_in_the_middle_of_an_epoch_ends_with_the_weights_it_would_have_had(
    cluster: TFCluster, frame: DataFrame
) -> None:
    def fit(failing: bool = False, first: int = 0, **how: Any) -> Any:
        data = frame.select("x", (F.col("id") + first).cast("float").alias("y"))
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
    same, others = Notices(), Notices()
    resumed, whole = fit(checkpoint_dir=where, resume=True, observer=same), fit(seed=9)
    assert not [text for text in same.texts if "its rows" in text]
    fit(checkpoint_dir=where, resume=True, observer=others, first=1)
    assert [text for text in others.texts if "train: its rows are not those" in text]
    for mine, expected in zip(resumed["weights"], whole["weights"], strict=True):
        assert np.abs(mine - expected).max() <= 1e-6
    losses = [results["history"].history["loss"] for results in (resumed, whole, fit(seed=10))]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[2] != losses[1]


PREDICT = """
import keras
import numpy as np
model = keras.Sequential([keras.Input(()), keras.layers.Lambda(lambda a: a * 2.0)])
told = model.predict(train, verbose=0)
"""


@pytest.mark.soak
@pytest.mark.parametrize("shuffle", every(2, [False, True]))
def test_predict_gives_the_rows_of_all_workers_in_the_order_of_the_dataframe(
    cluster: TFCluster, frame: DataFrame, shuffle: bool
) -> None:
    data = frame.select(F.col("id").cast("float").alias("v"))
    cell = PREDICT.replace("train", "train.map(lambda columns: columns['v'])")
    results = cluster.run(cell, frames={"train": data}, batch_size=64, shuffle=shuffle, outputs=["told"])
    assert results["told"].tolist() == [2.0 * row.v for row in data.collect()]


@pytest.mark.soak
def test_a_dataframe_whose_files_were_rewritten_is_fed_anew_and_one_whose_files_are_gone_keeps_its_rows(
    local_session: SparkSession, cluster: TFCluster, tmp_path: Path
) -> None:
    files = [tmp_path / "rows" / f"{part} a.parquet" for part in range(2)]
    files[0].parent.mkdir()
    for part, file in enumerate(files):
        pq.write_table(pa.table({"id": [part * 10 + row for row in range(4)]}), file)
    frame = local_session.read.parquet(str(files[0].parent))

    def look() -> tuple[list[int], str]:
        seen = Notices()
        cell = "told = tfos.allgather(next(iter(train))['id']).numpy()"
        told = cluster.run(cell, frames={"train": frame}, batch_size=100, outputs=["told"], observer=seen)["told"]
        return sorted(told.tolist()), " ".join(seen.texts)

    assert look() == ([0, 1, 2, 3, 10, 11, 12, 13], "")
    assert look() == ([0, 1, 2, 3, 10, 11, 12, 13], "")
    pq.write_table(pa.table({"id": [7, 8]}), files[1])
    rows, notices = look()
    assert rows == sorted(row.id for row in frame.collect()) == [0, 1, 2, 3, 7, 8]
    assert "train: its files were rewritten" in notices
    assert look() == ([0, 1, 2, 3, 7, 8], "")
    files[1].unlink()
    rows, notices = look()
    assert rows == [0, 1, 2, 3, 7, 8]
    assert "train: files that it was read from are gone" in notices
