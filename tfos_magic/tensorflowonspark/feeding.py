"""The Spark jobs that feed programs: rows of RDDs and DataFrames, epoch by epoch or as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from tfos_magic.cluster.cluster import TFCluster as Cluster
from tfos_magic.errors import FeedError
from tfos_magic.feed.task.send_rows import RowsJob, ask_rows, deal_rows
from tfos_magic.spark.session import cancel_tag, is_dataframe, job_tag
from tfos_magic.transport.messages import EndStream


class Feeding:
    """Feeds the programs that run as ``channel`` on the nodes of ``ranks``."""

    def __init__(self, cluster: Cluster, channel: str, ranks: Sequence[int]) -> None:
        self._cluster, self._channel, self._ranks = cluster, channel, tuple(ranks)
        self._tag = f"tfos-rows-{uuid4().hex[:8]}"
        self._queries: list[Any] = []

    def train(self, sc: Any, data: Any, epochs: int, timeout: float, queue: str) -> None:
        """Deal out the rows of ``data`` and return when they are taken; a stream's are as they come."""
        job = self._job(timeout, queue)
        if is_dataframe(data) and data.isStreaming:
            writer = data.writeStream.foreachBatch(lambda batch, _: self._feed(batch.sparkSession, _rows(batch), job))
            self._queries.append(writer.start())
        elif hasattr(data, "foreachRDD"):
            spark = self._cluster.spark
            data.foreachRDD(lambda rdd: self._feed(spark, rdd, job))
        else:
            rows = _rows(data) if is_dataframe(data) else data
            self._feed(self._cluster.spark, sc.union([rows] * epochs), job)

    def inference(self, data: Any, timeout: float, queue: str) -> Any:
        """A lazy RDD of the answers to the rows of ``data``."""
        job = self._job(timeout, queue)
        rows = _rows(data) if is_dataframe(data) else data
        return rows.mapPartitionsWithIndex(lambda number, part: ask_rows(job, number, part))

    def end(self) -> None:
        """Tell the programs that all rows have come. A query that feeds them is stopped."""
        for query in self._queries:
            query.stop()
        self._tell(EndStream(self._channel, 0))

    def fail(self, reason: str) -> None:
        """End what feeds, and what reads."""
        self._tell(EndStream(self._channel, 0, FeedError.__name__, reason))
        cancel_tag(self._cluster.spark, self._tag)

    def _feed(self, spark: Any, rows: Any, job: RowsJob) -> None:
        with job_tag(spark, self._tag):
            errors = rows.mapPartitionsWithIndex(lambda number, part: deal_rows(job, number, part)).collect()
        if errors:
            raise FeedError(errors[0])

    def _job(self, timeout: float, queue: str) -> RowsJob:
        feeds = self._cluster.feeds
        assert feeds is not None
        endpoints = tuple(worker.agent.feed for worker in self._cluster.workers)
        return RowsJob(self._channel, queue, endpoints, self._ranks, feeds.access, timeout)

    def _tell(self, message: EndStream) -> None:
        for rank in self._ranks:
            self._cluster.tell(rank, message)


def _rows(df: Any) -> Any:
    """An RDD of a DataFrame's rows as tuples, whose arrays of numbers are NumPy's, read from Arrow batches."""
    return df.rdd
