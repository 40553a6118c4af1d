"""A cluster starts when Spark has room for it, and says what it waits for meanwhile."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

from tfos_magic import TFCluster
from tfos_magic.cluster.workers import ClusterPhase
from tfos_magic.errors import StartTimeout
from tfos_magic.spark.session import busy_cores
from tfos_magic.spark.slots import await_slots


def test_slots_that_a_job_of_the_session_holds_are_waited_for(local_session: SparkSession) -> None:
    slots, told = local_session.sparkContext.defaultParallelism, list[str]()
    numbers = local_session.sparkContext.parallelize(range(slots), slots)
    job = threading.Thread(target=numbers.foreach, args=(lambda _: time.sleep(4),), name="a job")
    job.start()
    while busy_cores(local_session) < slots:
        time.sleep(0.05)
    await_slots(local_session, 1, 1, time.monotonic() + 90, waiting=lambda what, until: told.append(what))
    assert told[0] == "free slots of Spark: 0 of 2"
    job.join(60)
    assert not job.is_alive()


def test_a_start_that_finds_no_room_is_none_that_goes_on(local_session: SparkSession) -> None:
    cluster = TFCluster(local_session, workers=99)
    with pytest.raises(StartTimeout, match="99 workers and 1 feed slot asked"):
        cluster.start()
    assert cluster.phase is ClusterPhase.FAILED
