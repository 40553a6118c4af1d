"""The Spark jobs that feed programs: rows of RDDs and DataFrames, epoch by epoch or as they come."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from tfos_magic.cluster.cluster import TFCluster as Cluster
from tfos_magic.cluster.startup import Waits
from tfos_magic.errors import FeedError
from tfos_magic.feed.task.send_rows import RowsJob, ask_rows, deal_batches, deal_rows
from tfos_magic.spark.session import cancel_tag, is_dataframe, job_tag
from tfos_magic.transport.messages import EndStream

LOOK_SECONDS = 0.1


class Feeding:
    """Feeds the programs that run as ``channel`` on the nodes of ``ranks``."""

    def __init__(self, cluster: Cluster, channel: str, ranks: Sequence[int]) -> None:
        self._cluster, self._channel, self._ranks = cluster, channel, tuple(ranks)
        self._tag = f"tfos-rows-{uuid4().hex[:8]}"
        self._queries: list[Any] = []
        self._jobs: set[object] = set()
        self._reason = ""

    def train(self, sc: Any, data: Any, epochs: int, timeout: float, queue: str) -> None:
        """Deal out the rows of ``data`` and return when they are taken; a stream's are as they come."""
        job = self._job(timeout, queue)
        if is_dataframe(data) and data.isStreaming:
            writer = data.writeStream.foreachBatch(lambda batch, _: self._feed(lambda: _arrow_job(batch, job)))
            self._queries.append(writer.start())
        elif hasattr(data, "foreachRDD"):
            data.foreachRDD(lambda rdd: self._feed(lambda: _rows_job(rdd, job)))
        elif is_dataframe(data):
            for _ in range(epochs):
                self._feed(lambda: _arrow_job(data, job))
        else:
            self._feed(lambda: _rows_job(sc.union([data] * epochs), job))

    def inference(self, data: Any, timeout: float, queue: str) -> Any:
        """A lazy RDD of the answers to the rows of ``data``."""
        job = self._job(timeout, queue)
        rows = data.rdd if is_dataframe(data) else data
        return rows.mapPartitionsWithIndex(lambda number, part: ask_rows(job, number, part))

    def end(self, grace: float) -> None:
        """Tell the programs that all rows have come. A query that feeds them is stopped, after the rows that are there
        now, for which it has ``grace`` seconds. Raises :class:`FeedError` where one has failed before."""
        deadline, errors = time.monotonic() + grace, []
        for query in self._queries:
            _catch_up(query, deadline)
            errors.append(query.exception())
            query.stop()
        self._tell(EndStream(self._channel, 0))
        for error in filter(None, errors):
            lines = map(str.strip, str(error).partition("=== Streaming Query ===")[0].splitlines())
            said = [line for line in lines if line and not line.startswith("at ")] or [type(error).__name__]
            raise FeedError(f"The streaming query that fed the programs failed: {said[-1].lstrip(': ')}") from error

    def fail(self, reason: str) -> None:
        """End what feeds, and what reads. Returns when no job of ours feeds."""
        self._reason = reason
        self._tell(EndStream(self._channel, 0, FeedError.__name__, reason))
        self.cancel()
        while self._jobs:  # one that was about to begin
            time.sleep(LOOK_SECONDS)
            self.cancel()

    def cancel(self) -> None:
        """End what feeds."""
        cancel_tag(self._cluster.spark, self._tag)

    def _feed(self, deal: Callable[[], list[str]]) -> None:
        job = object()
        self._jobs.add(job)
        try:
            if self._reason:
                raise FeedError(self._reason)
            with job_tag(self._cluster.spark, self._tag):
                errors = deal()
        finally:
            self._jobs.discard(job)
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


def _catch_up(query: Any, deadline: float) -> None:
    """Wait until a query has fed what its source has, at most until ``deadline`` (monotonic)."""

    def process() -> None:
        with suppress(Exception):  # the query's own, which it keeps
            query.processAllAvailable()

    thread = threading.Thread(target=process, name="tfos-stream", daemon=True)
    waiting = Waits(aside=True)
    thread.start()
    while thread.is_alive() and time.monotonic() < deadline:
        waiting("the rows that a stream has for the programs")
        thread.join(LOOK_SECONDS)
    if thread.is_alive() and query.isActive:
        print("shutdown() ended a stream that had more rows: the programs did not get them.", file=sys.stderr)


def _rows_job(rdd: Any, job: RowsJob) -> list[str]:
    errors: list[str] = rdd.mapPartitionsWithIndex(lambda number, part: deal_rows(job, number, part)).collect()
    return errors


def _arrow_job(df: Any, job: RowsJob) -> list[str]:
    return [row.error for row in df.mapInArrow(partial(deal_batches, job), "error string").collect()]
