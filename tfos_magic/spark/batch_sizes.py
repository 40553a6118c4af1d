"""How many rows Spark hands to Python at once: few where rows are wide, so that it fills a batch while one is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfos_magic.columns.columns import SCALAR, FeedPlan
from tfos_magic.spark.session import is_connect

SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
WIDE_ROWS = 1024


@contextmanager
def small_batches(spark: Any, plan: FeedPlan) -> Iterator[None]:
    """Let the jobs of this thread get batches of at most 1,024 rows where rows may be wide.

    Spark's own 10,000 rows are 30 MB of small images, and its tasks stand still while those are on their way. Its tasks
    read settings from the properties of their job: the session is left as it is, and what it has set itself counts. A
    server of Spark Connect has no such properties.
    """
    if is_connect(spark) or all(column.kind == SCALAR for column in plan.columns):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(SETTING)
    context.setLocalProperty(SETTING, str(WIDE_ROWS))
    try:
        yield
    finally:
        context.setLocalProperty(SETTING, before)
