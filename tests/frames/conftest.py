"""A local session for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests import sessions


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two slots on this machine, few shuffle partitions; stopped after the module, before another one makes its own."""
    yield from sessions.local_session(2, **{"sql.shuffle.partitions": "3"})
