"""The cluster that stages train on: the one that this process has, else one that goes when the last of them ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.shared import SHARED
from tfos_magic.errors import ClusterError
from tfos_magic.spark.session import end_progress_bar

DEFAULT_WORKERS = 2

_LOCK = threading.Lock()
_USERS: list[object] = []
_STARTED: list[TFCluster] = []


@contextmanager
def shared_cluster(spark: Any, workers: int | None = None, servers: int = 0, keep: bool = False) -> Iterator[TFCluster]:
    """A cluster of at least so many workers for as long as it is used.

    One that is there is taken as it is, and left so. Raises :class:`ClusterError` where that is too small.
    """
    user = object()
    SHARED.settle()
    with _LOCK:
        cluster = _cluster(spark, workers, servers, keep)
        _USERS.append(user)
    try:
        yield cluster
    finally:
        with _LOCK:
            _USERS.remove(user)
            if not _USERS and _STARTED:
                started = _STARTED.pop()
                if SHARED.cluster is started:
                    SHARED.stop()


def _cluster(spark: Any, workers: int | None, servers: int, keep: bool) -> TFCluster:
    cluster = SHARED.cluster
    if cluster is None or not SHARED.running:
        end_progress_bar(spark)  # it would go on for as long as workers live
        made = SHARED.ensure(lambda: TFCluster(spark, workers=workers or DEFAULT_WORKERS, servers=servers))
        _STARTED[:] = [] if keep else [made]
        return made
    if (workers and workers > cluster.size) or servers > len(cluster.servers):
        raise ClusterError(
            f"The cluster has {cluster.size} workers and {len(cluster.servers)} parameter servers, and the estimator "
            f"asks for {workers or 'any'} and {servers}: ask for fewer, or stop the cluster (%tfos stop, or "
            "tfos_magic.current_cluster().stop())."
        )
    return cluster
