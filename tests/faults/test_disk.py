"""The disk of the spools is full: one clear error, and the cluster goes on."""

from __future__ import annotations

import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.faults.cells import run
from tfos_magic import TFCluster
from tfos_magic.errors import FeedError

LIMIT = 1 << 19


@pytest.fixture
def full_disk(cluster: TFCluster) -> Iterator[None]:
    """A limit on the size of the agents' files stands for a full disk: making one for real takes a mount."""
    pids = [worker.agent.pid for worker in cluster.workers]
    before = [resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids]
    for pid, (_, hard) in zip(pids, before, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT, hard))
    yield
    for pid, limits in zip(pids, before, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.soak
def test_a_full_spool_disk_gives_one_error_and_leaves_the_cluster_usable(
    cluster: TFCluster, spark: SparkSession, undisturbed: dict[str, Any], tmp_path: Path, full_disk: None
) -> None:
    columns = [F.array(*[F.rand(i).cast("float") for i in range(8)]).alias("x"), F.rand().cast("float").alias("y")]
    train = spark.range(0, 100_000, 1, 2).select(*columns)
    with pytest.raises(FeedError) as caught:
        run(cluster, "pass", tmp_path / "mark", frames={"train": train}, label="y")
    assert f"on {socket.gethostname()}" in str(caught.value)
    assert re.search(r"no space left for the feed in /\S+ on", str(caught.value))
    assert re.search(r"the next rows need [\d.]+ MB, [\d.]+ MB are free", str(caught.value))
    again = run(cluster, "pass", tmp_path / "mark")
    assert again["history"].history == undisturbed["history"].history
