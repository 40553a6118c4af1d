"""A distributed run on a Spark cluster gives the weights of the same cell in one plain process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.soak import every
from tfos_magic import TFCluster

ROWS, WIDTH, BATCH = 601, 7, 64
BOUND = 1e-5

MODEL = """
import keras
keras.utils.set_random_seed(3)
model = keras.Sequential([
    keras.Input((7,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3, activation="softmax")])
model.compile({optimizer}, "sparse_categorical_crossentropy", metrics=["accuracy"])
"""
FITS = {
    "frame": "history = model.fit(train, epochs=3, verbose=0)\n",
    "arrays": "history = model.fit(x, y, batch_size=64, epochs=3, verbose=0)\n",
}
DIGEST = """
import hashlib
import numpy as np
weights = model.get_weights()
print("digest", hashlib.sha256(b"".join(np.ascontiguousarray(w).tobytes() for w in weights)).hexdigest())
"""
OPTIMIZERS = {
    "momentum": "keras.optimizers.SGD(0.05, momentum=0.9)",
    "adam": "keras.optimizers.Adam(0.01)",
}
PLAIN = """
import json, sys
import keras
import numpy as np
import tensorflow as tf
cells = json.loads(sys.argv[2])
data = np.load(sys.argv[1])
x, y = data["x"], data["y"]
for name, cell in cells.items():
    train = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
    exec(cell)
    np.savez(name, *model.get_weights(), loss=history.history["loss"], accuracy=history.history["accuracy"])
    keras.backend.clear_session()
"""


def _data() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    random = np.random.default_rng(5)
    x = random.normal(size=(ROWS, WIDTH)).astype("float32")
    return x, (x[:, 0] + x[:, 1] > 0).astype("int64") + (x[:, 2] > 1)


def _frame(spark: SparkSession) -> DataFrame:
    """The same rows in the same order, in partitions of unequal size, one of them empty."""
    x, y = _data()
    rows = [(x[i].tolist(), int(y[i])) for i in range(ROWS)]
    schema = "x array<float>, y bigint"
    parts = [rows[:17], [], rows[17:400], rows[400:401], rows[401:]]
    frames = [spark.createDataFrame(part, schema).coalesce(1) for part in parts]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.union(frame)
    return whole


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Weights and history of every case from one ordinary process, with nothing of this package in it."""
    folder: Path = tmp_path_factory.mktemp("plain")
    x, y = _data()
    np.savez(folder / "data.npz", x=x, y=y)
    cells = {
        f"{name} {source}": MODEL.format(optimizer=optimizer) + fit
        for name, optimizer in OPTIMIZERS.items()
        for source, fit in FITS.items()
    }
    command = [sys.executable, "-c", PLAIN, "data.npz", json.dumps(cells)]
    subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=folder)
    return {case: dict(np.load(folder / f"{case}.npz")) for case in cells}


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("workers", "source"), every(4, [(3, "frame"), (3, "arrays"), (1, "frame"), (1, "arrays")]))
def test_weights_equal_those_of_one_plain_process(
    workers: int, source: str, local_session: SparkSession, plain: dict[str, Any]
) -> None:
    x, y = _data()
    frame = _frame(local_session)
    with TFCluster(local_session, workers=workers) as cluster:
        for name, optimizer in OPTIMIZERS.items():
            case, expected = f"{name} {source}", plain[f"{name} {source}"]
            cell = MODEL.format(optimizer=optimizer) + FITS[source] + DIGEST
            results = cluster.run(
                cell,
                names={} if source == "frame" else {"x": x, "y": y},
                frames={"train": frame} if source == "frame" else {},
                label="y" if source == "frame" else None,
                batch_size=BATCH,
                shuffle=False,
                outputs=["weights", "history"],
            )
            furthest = max(float(np.abs(w - expected[f"arr_{i}"]).max()) for i, w in enumerate(results["weights"]))
            print(f"{workers} workers, {case}: max |dw| {furthest:.1e}")
            assert furthest <= BOUND, case
            for metric in ("loss", "accuracy"):
                np.testing.assert_allclose(results["history"].history[metric], expected[metric], rtol=0, atol=BOUND)
            # A warning may come between.
            logs = [[line for line in lines if line.startswith("digest")] for lines in cluster.logs(tail=99).values()]
            digests = {lines[-1] for lines in logs}
            assert len(digests) == 1, f"{case}: the ranks ended with different weights: {digests}"
