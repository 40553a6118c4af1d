"""Whether Spark has room for a cluster, asked before Spark is: it would only try again for minutes."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfos_magic.errors import ClusterError, StartTimeout
from tfos_magic.spark.session import (
    Session,
    busy_cores,
    copies_long_tasks,
    is_dynamic,
    master_of,
    most_cores,
    runs_in_this_process_tree,
    total_cores,
)

POLL_SECONDS = 0.2


def await_slots(
    spark: Session,
    workers: int,
    cores: int,
    deadline: float,
    *,
    patient: bool = False,
    released: int = 0,
    feeding: int = 1,
    waiting: Callable[[str, float], object] = lambda what, until: None,
) -> None:
    """Wait until ``workers`` tasks of ``cores`` cores and one feed task fit, at most until ``deadline`` (monotonic).

    Executors may still be joining, or wait for cores that another application has. So only what the session's settings
    rule out is refused at once; not even that when ``patient``, as tasks that have just been cancelled may still be
    ending. ``released`` cores are about to be free. ``feeding`` is 0 where no slot is needed for feeding. Raises
    :class:`StartTimeout` with the numbers. Nothing is checked on a Connect session, which does not tell its slots. With
    dynamic allocation tasks that wait bring executors, and only the most that there may be is looked at. ``waiting`` is
    told what is waited for, and until when.
    """
    if is_dynamic(spark):
        _check_most(spark, workers, cores, feeding)
        return
    asked = workers * cores + feeding
    while (total := total_cores(spark)) is not None:
        free = total - busy_cores(spark) + released
        if free >= asked:
            return
        bound = total if runs_in_this_process_tree(spark) else most_cores(spark)
        if (bound is not None and bound < asked and not patient) or time.monotonic() > deadline:
            raise StartTimeout(_missing_slots(spark, workers, cores, total, free, feeding))
        so_far = f", and Spark has {total} in all so far" if total < asked else ""
        waiting(f"free slots of Spark: {max(free, 0)} of {asked}{so_far}", deadline)
        time.sleep(POLL_SECONDS)


def await_free(free: Callable[[], int], asked: int, deadline: float, waiting: Callable[[str, float], object]) -> bool:
    """Wait until as many slots are ``free`` as are asked for, at most until ``deadline``; gives whether they are."""
    while (there := free()) < asked and time.monotonic() < deadline:
        waiting(f"free slots of Spark: {there} of {asked}", deadline)
        time.sleep(POLL_SECONDS)
    return there >= asked


def check_allocation(spark: Session, hold_slots: bool) -> None:
    """Raise :class:`ClusterError` for what dynamic allocation would take from under the workers."""
    if not is_dynamic(spark):
        return
    if copies_long_tasks(spark):
        raise ClusterError(
            "By spark.speculation.task.duration.threshold Spark runs second copies of the workers' tasks, which "
            "hold as many slots again. It does not where tasks are a barrier stage, which dynamic allocation does "
            "not allow: make the session without one of the two."
        )
    if not hold_slots:
        raise ClusterError(
            "hold_slots=False has the workers leave their Spark tasks, and dynamic allocation then takes their "
            "executors away as idle: leave it out, or make the session with spark.dynamicAllocation.enabled=false."
        )


def _check_most(spark: Session, workers: int, cores: int, feeding: int) -> None:
    most = most_cores(spark)
    if most is not None and workers * cores + feeding > most:
        raise StartTimeout(
            f"{_asked(workers, cores, feeding)}, and dynamic allocation may bring {most} in all: raise "
            "spark.dynamicAllocation.maxExecutors, or ask for fewer workers."
        )


def _asked(workers: int, cores: int, feeding: int) -> str:
    each = f" of {cores} cores" if cores > 1 else ""
    beside = ("", " and 1 feed slot", ", 1 feed slot and 1 for messages")[feeding]
    return f"{workers} worker{'s' * (workers > 1)}{each}{beside} asked"


def _missing_slots(spark: Session, workers: int, cores: int, total: int, free: int, feeding: int) -> str:
    master, asked = master_of(spark), workers * cores + feeding
    fixes = [_more_cores(master, total, asked)]
    if workers > 1:
        fixes.append("ask for fewer workers")
    if free < total:
        fixes.append("wait for other jobs of this session to end")
    *first, last = fixes
    slots = f"{free} of {asked} slots free ({total} in all on {master})"
    return f"{_asked(workers, cores, feeding)}, {slots}: {', '.join(first)}{', or ' * bool(first)}{last}."


def _more_cores(master: str, total: int, asked: int) -> str:
    """How a session comes to more cores."""
    if master.startswith("local[") and total < asked:
        return f"end this session with spark.stop() and make one with master('local[{asked}]')"
    if total >= asked or master.startswith("local-cluster"):
        return "add executor cores"
    if total:
        return (
            "Spark has given this application no more so far. Another application may hold the rest: end it, let each "
            "take a part with spark.cores.max, add executor cores"
        )
    return (
        "Spark has given this application no executor. Another application may hold the cores: end it, or let each "
        "take a part with spark.cores.max. If none does, see that executors can start there"
    )
