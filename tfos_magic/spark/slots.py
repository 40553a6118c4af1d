"""Whether Spark has room for a cluster, asked before Spark is: it would only try again for minutes."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfos_magic.errors import StartTimeout
from tfos_magic.spark.session import (
    Session,
    busy_cores,
    is_dynamic,
    master_of,
    most_cores,
    runs_in_this_process_tree,
    total_cores,
)

POLL_SECONDS = 0.2
JOIN_SECONDS = 15.0
"""So long executors may take to join: Spark that has too few cores after that has no more to come."""


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

    Executors may still be joining, so only local mode with too few cores is refused at once; not even that when
    ``patient``, as tasks that have just been cancelled may still be ending. Where there are executors, but too few
    cores, free or not, and no more have joined for ``JOIN_SECONDS``, that is refused, too. ``released`` cores are about
    to be free. ``feeding`` is 0 where no slot is needed for feeding. Raises :class:`StartTimeout` with the numbers.
    Nothing is checked on a Connect session, which does not tell its slots. With dynamic allocation tasks that wait
    bring executors, and only the most that there may be is looked at. ``waiting`` is told what is waited for, and
    until when.
    """
    if is_dynamic(spark):
        _check_most(spark, workers, cores, feeding)
        return
    asked, known, joining = workers * cores + feeding, 0, time.monotonic() + JOIN_SECONDS
    while (total := total_cores(spark)) is not None:
        free = total - busy_cores(spark) + released
        if free >= asked:
            return
        if total > known:
            known, joining = total, time.monotonic() + JOIN_SECONDS
        limit = min(deadline, joining) if 0 < total < asked and not patient else deadline
        if (runs_in_this_process_tree(spark) and total < asked and not patient) or time.monotonic() > limit:
            raise StartTimeout(_missing_slots(spark, workers, cores, total, free, feeding))
        waiting(f"free slots of Spark: {max(free, 0)} of {asked}", limit)
        time.sleep(POLL_SECONDS)


def await_free(free: Callable[[], int], asked: int, deadline: float, waiting: Callable[[str, float], object]) -> bool:
    """Wait until as many slots are ``free`` as are asked for, at most until ``deadline``; gives whether they are."""
    while (there := free()) < asked and time.monotonic() < deadline:
        waiting(f"free slots of Spark: {there} of {asked}", deadline)
        time.sleep(POLL_SECONDS)
    return there >= asked


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
    return f"{workers} workers{each}{beside} asked"


def _missing_slots(spark: Session, workers: int, cores: int, total: int, free: int, feeding: int) -> str:
    master = master_of(spark)
    more = workers * cores + feeding
    anew = f"end this session with spark.stop() and make one with master('local[{more}]')"
    fix = anew if master.startswith("local[") and total < more else "add executor cores"
    if not total:
        fix = (
            "Spark has given this application no executor. Another application may hold the cores: end it, or let each "
            "take a part with spark.cores.max. If none does, see that executors can start there"
        )
    return (
        f"{_asked(workers, cores, feeding)}, {free} slots free ({total} in all on "
        f"{master}): {fix}, ask for fewer workers, or wait for other Spark jobs to end."
    )
