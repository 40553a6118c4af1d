"""TFRecord files in an object store as a data source of Spark, both ways."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tfos_magic as tfos
from tests import sessions
from tests.object_store import buckets, object_store


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with object_store("records"):
        # A JVM of an earlier module has another environment.
        names = [f"executorEnv.{name}" for name in os.environ if name.startswith("AWS_")]
        settings = {name: os.environ[name.partition(".")[2]] for name in names}
        for session in sessions.local_session(2, **settings):
            tfos.register_tfrecord(session)
            yield session


@pytest.mark.soak
def test_rows_go_to_a_store_and_come_back_and_no_bucket_is_made(spark: SparkSession) -> None:
    rows = spark.range(0, 20, 1, 2)
    rows.write.format("tfrecord").mode("append").save("s3://records/some/rows")
    assert sorted(row.id for row in spark.read.format("tfrecord").load("s3://records/some").collect()) == list(
        range(20)
    )
    (batch,) = tfos.dataset("s3://records/some/rows", batch_size=20, shuffle=False).as_numpy_iterator()
    assert sorted(batch["id"].tolist()) == list(range(20))
    with pytest.raises(PySparkException, match="there is no bucket 'no-such-bucket': correct the path"):
        rows.write.format("tfrecord").mode("append").save("s3://no-such-bucket/rows")
    assert "no-such-bucket" not in buckets()
