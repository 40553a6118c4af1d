"""One local session for the tests that need no particular kind of session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests import sessions


@pytest.fixture(scope="module")
def local_session() -> Iterator[SparkSession]:
    """Four slots on this machine; stopped after the module."""
    yield from sessions.local_session(4)
