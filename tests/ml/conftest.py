"""A session, a cluster that is there already, and rows whose labels are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests import sessions
from tfos_magic import TFCluster
from tfos_magic.cluster.shared import SHARED

ROWS = 203
WEIGHTS = np.array([1.0, -2.0, 0.5])


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    yield from sessions.local_session(5)


@pytest.fixture(scope="module")
def cluster(spark: SparkSession) -> Iterator[TFCluster]:
    """The cluster of this process."""
    yield SHARED.ensure(lambda: TFCluster(spark, workers=2))
    SHARED.stop()


@pytest.fixture(scope="package")
def values() -> dict[str, Any]:
    """Columns of a table: features, a label that is linear in them, classes, and more."""
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    y = x @ WEIGHTS + 3.0
    place = (y > 2.5).astype(int) + (y > 4)
    return {
        "x": x,
        "a": x[:, 0],
        "b": x[:, 1],
        "c": x[:, 2],
        "label": y,
        "place": place,
        "gaps": np.array([2, 5, 9])[place],
        "two": (y > 3).astype(int),
        "kind": np.array(["low", "middle", "high"])[place],
        "weight": np.arange(ROWS) % 4.0,
        "held": np.arange(ROWS) % 5 == 0,
    }


@pytest.fixture(scope="package")
def df(spark: SparkSession, values: dict[str, Any]) -> Any:
    """These columns in order, with vectors as ``features``."""
    from pyspark.ml.linalg import Vectors

    names = [name for name in values if name != "x"]
    rows = [
        (Vectors.dense(row), *(values[name][i].item() for name in names)) for i, row in enumerate(values["x"].tolist())
    ]
    return spark.createDataFrame(rows, ["features", *names]).coalesce(1).cache()
