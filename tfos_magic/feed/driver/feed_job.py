"""The feed job, driver side: one Spark job that brings a DataFrame's rows to the workers' spools."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from tfos_magic.columns.arrow import settle
from tfos_magic.columns.columns import FeedPlan, decode_schema, encode_schema
from tfos_magic.columns.digest import RowsDigest
from tfos_magic.columns.list_lengths import ListLengths
from tfos_magic.errors import DataError, FeedError, SpoolFull, TFOSError
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.agent.flight_messages import error_of
from tfos_magic.feed.driver.parquet_scan import feed_scan, find_scan
from tfos_magic.feed.task.feed_partition import (
    MEASURE_SCHEMA,
    RESULT_SCHEMA,
    FeedJob,
    feed_partition,
    measure_partition,
)
from tfos_magic.spark.batch_sizes import small_batches
from tfos_magic.spark.failures import cause_of, is_cancelled, lost_executor, own_error
from tfos_magic.spark.planning import plan_for
from tfos_magic.transport.messages import FeedEndpoint


@dataclass(frozen=True)
class FeedReport:
    """What a feed brought: ``(partition, attempt, rows)`` of every task whose rows count, and totals over all ranks.

    ``schema`` is that of the plan, as base64 of its IPC form, and tells the shapes of lists now that all are known.
    ``digests`` are those of the partitions' rows.
    """

    partitions: list[tuple[int, int, int]]
    rows: int
    bytes: int
    seconds: float
    schema: str
    digests: tuple[RowsDigest, ...] = ()


class Overflow(SpoolFull):
    """A feed had no room; ``schema`` is settled by the rows that were seen until then."""

    def __init__(self, message: str, schema: str) -> None:
        super().__init__(message)
        self.schema = schema


def feed_dataframe(
    df: Any,
    plan: FeedPlan,
    *,
    feed_id: str,
    endpoints: Sequence[FeedEndpoint],
    access: FeedAccess,
    timeout: float = 120.0,
    schema: str = "",
    first_partition: int = 0,
    ranks: Sequence[int] = (),
    world: int = 0,
    parallelism: int = 0,
) -> FeedReport:
    """Send the planned columns of ``df`` to the agents at ``endpoints``, by rank, and wait for the end.

    Uses the DataFrame API alone, so a classic and a Connect session serve alike. The caller tags the job to be able to
    cancel it; ``timeout`` in seconds bounds each call from a task to a receiver. A feed with a settled ``schema`` is
    streamed, its partitions numbered from ``first_partition``, to ``ranks`` alone where these are given. Each ``world``
    of the receivers share out all rows among them; 0: all do. ``parallelism`` is what the DataFrame was planned for
    before, where it was (see :func:`~tfos_magic.spark.planning.plan_for`).

    Raises :class:`DataError` for nulls, a DataFrame without rows or one that Spark cannot compute, :class:`FeedError`
    when rows cannot be delivered, and :class:`Overflow` when there is no room for them all.
    """
    started = time.monotonic()
    job = FeedJob(feed_id, plan, tuple(endpoints), access, timeout, schema, first_partition, tuple(ranks), world)
    rows = _run(df, job, parallelism)
    widths = reduce(ListLengths.merge, (ListLengths.from_json(row.widths) for row in rows), ListLengths())
    _raise_errors(plan, rows, widths)
    total = sum(row.rows for row in rows)
    if not total and not schema:
        raise DataError("it has no rows: check its filters and its source")
    rows.sort(key=lambda row: row.partition)
    partitions = [(row.partition, row.attempt, row.rows) for row in rows]
    schema = schema or encode_schema(settle(decode_schema(plan.schema), widths))
    digests = tuple(RowsDigest(row.rows, row.digest, row.row_order) for row in rows)
    return FeedReport(partitions, total, sum(row.bytes for row in rows), time.monotonic() - started, schema, digests)


def measure_dataframe(df: Any, plan: FeedPlan) -> tuple[int, str]:
    """Give the rows of ``df`` and the settled schema of its feed, empty where there are none; nothing is sent.

    Raises what :func:`feed_dataframe` raises.
    """
    with _explained():
        frame = _select(df, plan.sources)
        measurements = list(frame.mapInArrow(partial(measure_partition, plan), MEASURE_SCHEMA).collect())
    rows = sum(row.rows for row in measurements)
    widths = reduce(ListLengths.merge, (ListLengths.from_json(row.widths) for row in measurements), ListLengths())
    return rows, encode_schema(settle(decode_schema(plan.schema), widths)) if rows else ""


def _raise_errors(plan: FeedPlan, rows: Sequence[Any], widths: ListLengths) -> None:
    """Raise what ended a task; that there was no room only where nothing else was wrong."""
    errors = [error_of(row.kind, row.error) for row in sorted(rows, key=lambda row: row.partition) if row.error]
    for error in errors:
        if not isinstance(error, SpoolFull):
            raise error
    if errors:
        raise Overflow(str(errors[0]), encode_schema(settle(decode_schema(plan.schema), widths)))


def _run(df: Any, job: FeedJob, parallelism: int) -> list[Any]:
    """Run the job and collect one result row by partition."""
    with _explained():
        frame = _select(df, job.plan.sources)
        plan_for(frame, parallelism)
        if (scan := find_scan(frame, job.plan.sources)) is not None:
            rows = feed_scan(df.sparkSession, job, scan)
            if rows is not None:
                return rows
        with small_batches(df.sparkSession, job.plan):
            sent = frame.mapInArrow(partial(feed_partition, job), RESULT_SCHEMA)
            plan_for(sent, parallelism)
            return list(sent.collect())


@contextmanager
def _explained() -> Iterator[None]:
    """Let Spark's errors come as ours."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise explain(error) from None
    except Exception as error:
        if type(error).__module__.startswith(("py4j", "grpc")):
            raise explain(error) from None
        raise


def _select(df: Any, names: list[str]) -> Any:
    """Select columns by position, for names with dots, backticks or another case trip Spark's look-up."""
    known = df.columns
    plain = df.toDF(*(f"c{index}" for index in range(len(known))))
    return plain.select([f"c{known.index(name)}" for name in names])


def explain(error: Exception) -> TFOSError:
    """Give the cause of a failed feed job, without the stacks of the JVM and of Python workers."""
    if (package_error := own_error(error)) is not None:
        return package_error
    if is_cancelled(error):
        return FeedError("the feed was cancelled before all rows were sent: run the cell again to feed the DataFrame")
    cause = cause_of(error)
    if lost_executor(error):
        return FeedError(
            f"Spark lost an executor or its session during the feed ({cause}): check the cluster, then run again"
        )
    return DataError(f"Spark cannot compute this DataFrame: {cause}. Make df.count() or df.show() work first")
