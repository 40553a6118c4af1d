"""A Structured Streaming DataFrame on its way to a run: each micro-batch is the next part of one endless iteration."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfos_magic.columns.columns import FeedPlan
from tfos_magic.errors import DataError, FeedError, TFOSError, UsageError
from tfos_magic.feed.driver.feed_job import FeedReport, explain, measure_dataframe
from tfos_magic.spark.session import is_connect

log = logging.getLogger("tfos_magic.cluster")

LOOK_SECONDS = 0.5
STOP_SECONDS = 10.0

SendBatch = Callable[[Any, str, int], FeedReport]
"""Feeds a micro-batch with this settled schema, its partitions numbered from there on."""


@dataclass(frozen=True)
class StreamingSource:
    """A streaming DataFrame, and how its query is started: ``trigger`` and ``options`` are DataStreamWriter's."""

    frame: Any
    trigger: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> Any:
        return self.frame.schema


def as_streaming(frame: Any) -> StreamingSource | None:
    """``frame`` as a streaming one, None where it is not. Raises :class:`UsageError` in a Connect session."""
    if isinstance(frame, StreamingSource):
        source = frame
    elif getattr(frame, "isStreaming", False):
        source = StreamingSource(frame)
    else:
        return None
    if is_connect(source.frame.sparkSession):
        raise UsageError(
            "a streaming DataFrame of a Spark Connect session cannot be fed: its foreachBatch runs on the server, not "
            "in this kernel. Use a classic session, or feed what a query has written as a separate DataFrame."
        )
    return source


class LiveQuery:
    """The query of one run over a streaming DataFrame, which the cell knows as ``name``.

    Its micro-batches wait until :meth:`open`: the rows of the first one tell the shapes of lists, ``schema``. When the
    query ends, by itself or by its ``stop()``, ``ended(partitions, error)`` is called once with its ``outcome``,
    unless it ends by :meth:`stop`.
    """

    def __init__(
        self, name: str, frame: StreamingSource, plan: FeedPlan, ended: Callable[[int, TFOSError | None], None]
    ) -> None:
        self.schema = ""
        self.error: TFOSError | None = None
        self.outcome: tuple[int, TFOSError | None] | None = None
        self._name, self._plan, self._ended = name, plan, ended
        self._partitions = 0
        self._send: SendBatch | None = None
        self._changed = threading.Condition()
        self._stopping = self._stopped = False
        writer = frame.frame.writeStream.foreachBatch(self._take)
        if frame.trigger:
            writer = writer.trigger(**frame.trigger)
        with self._changed:
            self._query = writer.options(**dict(frame.options)).start()
        self._thread = threading.Thread(target=self._watch, name=f"tfos-query-{name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait_known(self, seconds: float) -> bool:
        """True when the first rows have come within that time. Raises why they never will."""
        with self._changed:
            known = self._changed.wait_for(lambda: self.schema or not self.running, seconds)
            if self.schema or not known:
                return bool(self.schema)
        raise self.error or DataError(f"the query of {self._name!r} ended before its first row: check its source")

    def open(self, send: SendBatch) -> None:
        """Let micro-batches through."""
        with self._changed:
            self._send = send
            self._changed.notify_all()

    def stop(self) -> None:
        """End the query and wait for that."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        stopper = threading.Thread(target=self._query.stop, name=f"tfos-query-stop-{self._name}", daemon=True)
        stopper.start()
        for thread in (stopper, self._thread):
            thread.join(STOP_SECONDS)
            if thread.is_alive():
                log.warning("the query of %s did not end within %.0f s of its stop", self._name, STOP_SECONDS)

    def _take(self, batch: Any, number: int) -> None:
        """Feed one micro-batch; called by Spark, one after another."""
        try:
            if not self.schema:
                self._learn(batch)
            if self.schema:
                self._partitions += len(self._sender()(batch, self.schema, self._partitions).partitions)
        except TFOSError as error:
            with self._changed:
                self._stopped = not self._query.isActive
            # A stop of the query interrupts its micro-batch, which Spark gives again when the query is started again.
            self.error = self.error or (None if self._stopped else error)
            raise

    def _learn(self, batch: Any) -> None:
        _, schema = measure_dataframe(batch, self._plan)
        with self._changed:
            self.schema = schema
            self._changed.notify_all()

    def _sender(self) -> SendBatch:
        with self._changed:
            # The workers' trainers load, or the cell has yet to come to its data: as long as the run goes on.
            while self._send is None and not self._stopping:
                self._changed.wait(LOOK_SECONDS)
            if self._send is None:
                raise FeedError("the run ended before it read a row of this query")
            return self._send

    def _watch(self) -> None:
        """Wait for the end of the query, for as long as it takes."""
        try:
            while not self._query.awaitTermination(LOOK_SECONDS):
                pass
        except Exception as error:  # of Spark, for whatever ended the query
            self.error = self.error or (None if self._stopped else explain(error))
        with self._changed:
            self._changed.notify_all()
            stopping = self._stopping
            self.outcome = self._partitions, self.error
        if not stopping:
            self._ended(*self.outcome)
