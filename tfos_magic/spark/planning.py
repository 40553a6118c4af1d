"""Into how many partitions Spark cuts what it reads: by the cores it has when it plans, unless it is told.

A DataFrame that is fed anew, after an executor was lost for good or in a session with other cores, is planned as it was
for the first time, so that its rows come in the same partitions.
"""

from __future__ import annotations

from typing import Any

from tfos_magic.spark.shipping import Session, is_connect

SETTING = "spark.sql.leafNodeDefaultParallelism"


def parallelism_of(spark: Session) -> int:
    """How many partitions Spark aims at now for files and ranges; 0 for a Connect session, which does not tell."""
    if is_connect(spark):
        return 0
    return int(spark.conf.get(SETTING, None) or spark.sparkContext.defaultParallelism)


def plan_for(frame: Any, parallelism: int) -> None:
    """Plan ``frame`` now, as a session does that aims at so many partitions; 0 leaves that to its first use.

    The setting of the session is what it was when this returns. What has a shuffle is left alone: it would be run to be
    planned, and its rows come in any order.
    """
    spark = frame.sparkSession
    if not parallelism or parallelism_of(spark) in (0, parallelism):
        return
    before = spark.conf.get(SETTING, None)
    spark.conf.set(SETTING, str(parallelism))
    try:
        execution = frame._jdf.queryExecution()
        if not is_adaptive(execution):
            execution.toRdd()  # files are shared out to partitions no earlier
    finally:
        spark.conf.unset(SETTING) if before is None else spark.conf.set(SETTING, before)


def is_adaptive(execution: Any) -> bool:
    """Whether the plan of a query has a shuffle in it, and would be run to be looked at."""
    return "AdaptiveSparkPlan" in str(execution.executedPlan().getClass().getName())
