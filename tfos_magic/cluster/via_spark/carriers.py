"""How one exchange with a relay is had from Spark."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from tfos_magic.errors import ExecutorError, StartTimeout
from tfos_magic.spark.failures import cause_of, is_cancelled
from tfos_magic.spark.session import Session, cancel_tag, is_connect, is_stopped, job_tag
from tfos_magic.worker.relay.line import Line
from tfos_magic.worker.relay.tasks import ANSWER_SCHEMA, PLACE_SCHEMA, Exchange, Reached, StartRelay

POOL = "tfos_magic"
"""Where Spark schedules fairly (``spark.scheduler.mode``), messages have their turn beside the jobs of others."""

Carrier = Callable[[Line, int, bytes], bytes | None]
"""Does one exchange; None where the relay did not answer. Raises what Spark raises."""


class Jobs:
    """Small Spark jobs with a ``tag`` of their own, one at a time."""

    def __init__(self, spark: Session) -> None:
        self._spark, self.tag = spark, f"tfos-messages-{uuid4().hex[:12]}"

    def __call__(self, line: Line, number: int, packed: bytes) -> bytes | None:
        self._spark.sparkContext.setJobDescription("tfos_magic: messages")
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)  # of this thread alone
        answer = self._run(Exchange(line, number, packed), ANSWER_SCHEMA)
        return None if answer is None else bytes(answer)

    def place(self, task: StartRelay | Reached, seconds: float) -> str:
        """What a task says of the executor it ran on. Raises :class:`StartTimeout` where none does within the time."""
        limit = threading.Timer(seconds, self.cancel)
        limit.name = "tfos-relay-limit"
        limit.start()
        try:
            return str(self._run(task, PLACE_SCHEMA))
        except Exception as error:
            if is_cancelled(error):
                raise StartTimeout(f"Spark had no free slot for a task within {seconds:.0f} s.") from None
            raise ExecutorError(f"No executor could start a relay for messages: {cause_of(error)}") from None
        finally:
            limit.cancel()
            limit.join()

    def _run(self, task: Any, schema: str) -> Any:
        """The value in the one row of the one task of a job."""
        with job_tag(self._spark, self.tag):
            return self._spark.range(0, 1, 1, 1).mapInArrow(task, schema).collect()[0][0]

    def cancel(self) -> None:
        """End the job that runs or waits."""
        if not is_stopped(self._spark):
            cancel_tag(self._spark, self.tag)


class Questions(Jobs):
    """Spark Connect's server itself does the exchange when it is asked what columns a table function has, which a
    function written in Python says. That takes no slot, and waits for no job."""

    def __call__(self, line: Line, number: int, packed: bytes) -> bytes | None:
        from pyspark.sql.connect.session import SparkSession
        from pyspark.sql.functions import udtf

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
        answer = udtf(Columns)().schema[0].metadata.get("answer")  # type: ignore[call-overload]
        return None if answer is None else base64.b64decode(answer)


def carrier_of(spark: Session) -> Jobs:
    """What carries the messages of a session."""
    return Questions(spark) if is_connect(spark) else Jobs(spark)
