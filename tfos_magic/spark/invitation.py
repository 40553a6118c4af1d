"""More executors where allocation is dynamic: Spark starts some for tasks that wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

from tfos_magic.spark.session import Session, cancel_tag, is_dynamic, is_stopped, job_tag

TASK_SECONDS, MOST_SECONDS, PAUSE_SECONDS = 2.0, 20.0, 60.0


class Invitation:
    """A small job whose tasks do nothing, but wait for slots as those of workers would, without holding up a run."""

    def __init__(self, spark: Session) -> None:
        self._spark, self._tag = spark, f"tfos-invitation-{uuid4().hex[:12]}"
        self._next = 0.0

    def send(self, tasks: int) -> None:
        """Have Spark start executors for so many tasks and one that feeds, if it may: at most once a minute, without
        waiting for them."""
        if tasks > 0 and time.monotonic() > self._next and is_dynamic(self._spark):
            self._next = time.monotonic() + PAUSE_SECONDS
            threading.Thread(target=self._run, args=(tasks + 1,), name="tfos-invitation", daemon=True).start()

    def withdraw(self) -> None:
        """End the job, if it goes on."""
        if self._next and not is_stopped(self._spark):
            cancel_tag(self._spark, self._tag)

    def _run(self, tasks: int) -> None:
        limit = threading.Timer(MOST_SECONDS, self.withdraw)
        limit.name = "tfos-invitation-limit"
        limit.start()
        try:
            with suppress(Exception), job_tag(self._spark, self._tag):  # there are no slots: the run has what it has
                self._spark.sparkContext.setJobDescription("tfos_magic: asks for executors")
                self._spark.range(0, tasks, 1, tasks).mapInArrow(_wait, "id bigint").collect()
        finally:
            limit.cancel()


def _wait(batches: Iterator[Any]) -> Iterator[Any]:
    yield from ()
    for _ in batches:
        pass
    time.sleep(TASK_SECONDS)
