"""The workers' side of the feed benchmark: a receiver and a spool in a process of its own, as an agent has them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from pyspark.sql import DataFrame

from tfos_magic.columns.schema_plan import plan_feed
from tfos_magic.columns.selection import Selection
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.driver.feed_job import feed_dataframe
from tfos_magic.transport.identity import Authority, worker_name

ACCESS = FeedAccess("benchmark", Authority().identify(worker_name(0)))
FEED = "feed"


class Ranks:
    """As many receivers as there are ``pipes``."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes
        self._endpoints = [_answer(pipe, "its address", 60.0) for pipe in pipes]

    def feed(self, df: DataFrame) -> int:
        """Bring all rows of ``df`` to the spools, in the place of those before; gives how many they are."""
        plan = plan_feed(df.schema, Selection(label="label"))
        for rank in range(len(self._pipes)):
            self._ask(rank, "open", rank, len(self._pipes), plan.schema)
        report = feed_dataframe(df, plan, feed_id=FEED, endpoints=self._endpoints, access=ACCESS)
        for rank in range(len(self._pipes)):
            self._ask(rank, "commit", report.partitions, report.schema)
        return report.rows

    def handles(self) -> list[dict[str, Any]]:
        """What is needed to read the spools."""
        return [self._ask(rank, "handle") for rank in range(len(self._pipes))]

    def _ask(self, rank: int, *order: Any) -> Any:
        self._pipes[rank].send(order)
        return _answer(self._pipes[rank], str(order[0]), 60.0)


@contextmanager
def receivers(count: int) -> Iterator[Ranks]:
    """Start ``count`` receivers, and end them afterwards."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=_serve, args=(theirs,), name="feed-receiver") for _, theirs in pipes]
    for process in processes:
        process.start()
    try:
        yield Ranks([ours for ours, _ in pipes])
    finally:
        for (ours, _), process in zip(pipes, processes, strict=True):
            ours.send(None)
            process.join(10)


def _serve(pipe: Connection) -> None:
    """A rank: told what to do with its spool through ``pipe``, until it is told to end."""
    spool = Spool()
    receiver = FeedFlightServer("127.0.0.1", ACCESS, spool)
    receiver.start()
    pipe.send(receiver.endpoint)
    while (order := pipe.recv()) is not None:
        name, *arguments = order
        pipe.send(getattr(spool, name)(FEED, *arguments))
    receiver.close()
    spool.close()


def _answer(pipe: Connection, question: str, timeout: float) -> Any:
    if not pipe.poll(timeout):
        raise TimeoutError(f"a process of the benchmark did not answer {question!r} within {timeout:g} s")
    return pipe.recv()
