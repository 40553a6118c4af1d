"""Folders that Spark writes with ``partitionBy`` are columns of ``tfos.dataset``, with the values that Spark reads."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tfos_magic as tfos
from tests import sessions
from tests.soak import every

ROWS = """
    select id, elt(id + 1, 1, -2, null) as whole, elt(id + 1, 1L, 3000000000L, 2L) as long,
        elt(id + 1, 1.0d, 1e-9d, 2.5d) as double, elt(id + 1, '9', '9999999999999999999999', '7') as decimal,
        elt(id + 1, 'a/b', '50% ü:=?', 'x=y') as word, elt(id + 1, '1.5', '3000000000', '1') as mixed,
        date_add(date'1969-12-31', int(id) * 100) as day,
        timestampadd(hour, int(id), timestamp'2024-02-29 00:30:00') as time
    from range(0, 3, 1, 1)
"""
FOLDERS = ["whole", "long", "double", "decimal", "word", "mixed", "day", "time"]
EPOCH = datetime.datetime(1970, 1, 1)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    for session in sessions.local_session(2):
        tfos.register_tfrecord(session)
        yield session


@pytest.mark.soak
@pytest.mark.parametrize("kind", every(3, ["parquet", "csv", "tfrecord"]))
def test_columns_of_folders_are_those_of_sparks_dataframe(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    written = str(tmp_path / "rows")
    spark.sql(ROWS).write.partitionBy(*FOLDERS).option("header", True).format(
        "csv" if kind == "csv" else "parquet"
    ).save(written)
    expected = spark.read.option("header", True).format("csv" if kind == "csv" else "parquet").load(written)
    path = written
    if kind == "tfrecord":  # Spark does not let sources in Python write such folders
        path = str(tmp_path / "records")
        for folder in {file.parent for file in Path(written).rglob("part-*")}:
            inside = spark.read.parquet(str(folder))
            inside.write.format("tfrecord").mode("append").save(f"{path}/{folder.relative_to(written)}")
        taken = dict(spark.read.format("tfrecord").load(path).dtypes)
        assert taken == dict(expected.dtypes) | {"decimal": "double", "time": "timestamp_ntz"}
    names = [*expected.columns]
    (batch,) = tfos.dataset(path, kind, batch_size=3, shuffle=False, fill="whole=-9").as_numpy_iterator()
    given = {int(row["id"]): row for row in ({name: batch[name][at] for name in names} for at in range(3))}
    for row in expected.collect():
        assert {name: told(given[int(row.id)][name]) for name in FOLDERS} == {n: as_tensor(row[n]) for n in FOLDERS}
    dtypes = {name: batch[name].dtype.name for name in FOLDERS}
    assert [dtypes[name] for name in FOLDERS] == [
        "int32", "int64", "float64", "float64", "object", "object", "int64", "int64"
    ]  # fmt: skip


def told(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value.item()


def as_tensor(value: Any) -> Any:
    """What a value of Spark's becomes."""
    if value is None:
        return -9
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return (value - EPOCH.date()).days
    return float(value) if isinstance(value, Decimal) else value
