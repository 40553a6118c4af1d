"""Spark sessions of this process, for tests that need no particular kind."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession


def local_session(slots: int, **settings: str) -> Iterator[SparkSession]:
    """A quiet session with ``slots`` on this machine; stopped when the fixture that yields from it ends."""
    builder = SparkSession.builder.master(f"local[{slots}]")
    for name, value in {"ui.enabled": "false", "ui.showConsoleProgress": "false", **settings}.items():
        builder = builder.config(f"spark.{name}", value)
    session = builder.getOrCreate()
    yield session
    session.stop()
