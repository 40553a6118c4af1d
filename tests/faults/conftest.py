"""One session for all faults, and one cluster for those that cost trainers alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests import sessions
from tests.faults.cells import run
from tfos_magic import TFCluster

HEARTBEAT_TIMEOUT = 8.0


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """Six slots on this machine, enough for two clusters."""
    yield from sessions.local_session(6)


@pytest.fixture(scope="package")
def cluster(spark: SparkSession) -> Iterator[TFCluster]:
    """Two workers; after a fault of a trainer the next test finds fresh ones."""
    with TFCluster(spark, workers=2, heartbeat_timeout=HEARTBEAT_TIMEOUT) as made:
        yield made


@pytest.fixture(scope="package")
def undisturbed(cluster: TFCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the cell gives when nothing happens."""
    return run(cluster, "pass", tmp_path_factory.mktemp("undisturbed") / "mark")
