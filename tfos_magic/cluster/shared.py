"""The cluster of a process: the one that magics and distributed functions have in common."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.runs.run import Run, end_runs
from tfos_magic.cluster.runs.run_queue import RunQueue
from tfos_magic.cluster.workers import ClusterPhase
from tfos_magic.errors import ClusterError
from tfos_magic.spark.session import is_stopped

SETTLE_SECONDS, LOOK_SECONDS = 30.0, 0.05


class SharedCluster:
    """At most one cluster at a time, started when it is first needed and anew when another size is asked for.

    ``queue`` outlives it: a run that waits may be the one that starts the next.
    """

    def __init__(self) -> None:
        self.cluster: TFCluster | None = None
        self.queue: RunQueue[Run] = RunQueue()
        self.leaving: list[Callable[[], bool]] = []
        """Each tells whether someone whose call was interrupted is about to end runs, and the cluster it started."""

    @property
    def running(self) -> bool:
        """True when there is a cluster, and its session, that can take a cell."""
        if self.cluster is None or self.cluster.phase is not ClusterPhase.RUNNING:
            return False
        return not is_stopped(self.cluster.spark)

    @property
    def starting(self) -> str:
        """Why there is no cluster yet, where a run is starting it; else empty."""
        runs = self.queue.runs
        return f"There is no cluster yet: {runs[0].name} is starting it." if runs else ""

    def size_for(self, workers: int | None, default: int) -> int:
        """How many workers a run will have that asks for so many; None is any number."""
        self.settle()
        return workers or (self.cluster.size if self.cluster is not None and self.running else default)

    def suits(self, workers: int | None, servers: int | None) -> bool:
        """Whether there is a running cluster of so many workers and at least so many servers; None is any number."""
        cluster = self.cluster if self.running else None
        return (
            cluster is not None
            and workers in (None, cluster.size)
            and (servers is None or servers <= len(cluster.servers))
        )

    def settle(self, timeout: float = SETTLE_SECONDS) -> None:
        """Return when what is being ended has ended, or after ``timeout`` seconds: a run that came now would end."""
        deadline = time.monotonic() + timeout
        while any(leaving() for leaving in self.leaving) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def ensure(
        self,
        make: Callable[[], TFCluster],
        *,
        workers: int | None = None,
        servers: int | None = None,
        run_id: str = "",
        wait_for_trainers: bool = True,
    ) -> TFCluster:
        """The running cluster, if it has so many workers and at least so many servers, else what ``make`` makes.

        None is any number. One of another size ends first: the run ``run_id`` has its workers, or, where that is empty,
        nobody has. Raises :class:`ClusterError` where another run does or where there is no room for that size, when
        the cluster stays as it is, and what starting a cluster raises.
        """
        cluster = self.cluster
        if cluster is not None and self.running:
            if self.suits(workers, servers):
                return cluster
            if any(run.run_id != run_id for run in self.queue.runs[:1]):
                raise ClusterError(
                    f"The cluster of {cluster.size} workers and {len(cluster.servers)} parameter servers is busy with "
                    "a run, and cannot be resized: wait for the run, or stop it."
                )
        made = make()
        if cluster is not None and self.running:
            made.check_room(cluster)
        if cluster is not None:
            cluster.queue = RunQueue()  # those who wait have their turn on the next one
            cluster.stop()
        self.cluster, made.queue = made, self.queue
        made.start(wait_for_trainers)
        return made

    def stop(self, force: bool = False) -> bool:
        """End the runs that go on or wait, unless by ``force``, and the cluster; True when there was one."""
        if not force:
            end_runs(self.queue)
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.stop(force=force)
        return cluster is not None


SHARED = SharedCluster()
"""That of this process."""


def current_cluster() -> TFCluster:
    """The cluster of magics, of decorated functions and of estimators. Raises :class:`ClusterError` without one."""
    if SHARED.cluster is None or not SHARED.running:
        if said := SHARED.starting:
            raise ClusterError(f"{said} Ask again once that run trains.")
        raise ClusterError("There is no cluster: %tfos start starts one, and so does every cell that trains.")
    return SHARED.cluster
