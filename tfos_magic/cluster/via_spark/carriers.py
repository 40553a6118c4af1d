"""How one exchange with a relay is had from Spark."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from tfos_magic.errors import ExecutorError, StartTimeout
from tfos_magic.spark.failures import cause_of, is_cancelled, with_remedy
from tfos_magic.spark.session import Session, cancel_tag, end_of, is_stopped, job_tag
from tfos_magic.worker.relay.line import Line, exchange
from tfos_magic.worker.relay.relay import SCHEMA, Task

LARGE = 500_000
POOL = "tfos_magic"
"""Where Spark schedules fairly (``spark.scheduler.mode``), messages have their turn beside the jobs of others."""


class Jobs:
    """Small Spark jobs with a tag of their own, one at a time."""

    def __init__(self, spark: Session) -> None:
        self._spark, self._tag = spark, f"tfos-messages-{uuid4().hex[:12]}"
        self._one: Any = None

    def __call__(self, line: Line, number: int, packed: bytes) -> bytes | None:
        context = self._spark.sparkContext
        context.setJobDescription("tfos_magic: messages")
        context.setLocalProperty("spark.scheduler.pool", POOL)  # of this thread alone
        self._one = self._one or context.parallelize([0], 1)  # of which a job costs half of one of a DataFrame
        if len(packed) < LARGE:
            with job_tag(self._spark, self._tag):
                return self._one.map(lambda _: exchange(line, number, packed)).collect()[0]
        # In a closure it would be broadcast by PySpark, and stay on the driver's disk.
        sent = context.broadcast(packed)
        try:
            with job_tag(self._spark, self._tag):
                return self._one.map(lambda _: exchange(line, number, sent.value)).collect()[0]
        finally:
            sent.destroy()

    def ask(self, work: Callable[[], str], seconds: float) -> str:
        """What ``work`` says on an executor. Raises :class:`StartTimeout` where Spark has no slot within the time."""
        limit = threading.Timer(seconds, self.cancel)
        limit.name, limit.daemon = "tfos-relay-limit", True
        limit.start()
        try:
            with job_tag(self._spark, self._tag):
                return str(self._spark.range(0, 1, 1, 1).mapInArrow(Task(work), SCHEMA).collect()[0].said)
        except Exception as error:  # whatever Spark raises
            if is_cancelled(error):
                raise StartTimeout(f"Spark had no free slot for messages within {seconds:.0f} s: add one.") from None
            if is_stopped(self._spark):
                raise ExecutorError(end_of(self._spark)) from None
            raise ExecutorError(f"Messages cannot go by Spark: {with_remedy(cause_of(error))}") from None
        finally:
            limit.cancel()
            limit.join()

    def cancel(self) -> None:
        """End the job that runs or waits."""
        if not is_stopped(self._spark):
            cancel_tag(self._spark, self._tag)


class QuestionJobs(Jobs):
    """Spark Connect's server itself does the exchange when it is asked what columns a table function has, which a
    function written in Python says. That takes no slot, and waits for no job."""

    def __call__(self, line: Line, number: int, packed: bytes) -> bytes | None:
        from pyspark.sql.connect.functions import udtf
        from pyspark.sql.connect.session import SparkSession

        class Columns:
            @staticmethod
            def analyze() -> Any:
                from pyspark.sql.types import StringType, StructField, StructType
                from pyspark.sql.udtf import AnalyzeResult

                from tfos_magic.worker.relay.line import exchange

                answer = exchange(line, number, packed)
                said = {} if answer is None else {"answer": base64.b64encode(answer).decode()}
                return AnalyzeResult(StructType([StructField("answer", StringType(), True, said)]))

            def eval(self) -> Any:
                yield ("",)

        SparkSession._set_default_and_active_session(self._spark)  # of this thread
        table: Any = udtf(Columns, useArrow=False)
        answer = table().schema[0].metadata.get("answer")
        return None if answer is None else base64.b64decode(answer)
