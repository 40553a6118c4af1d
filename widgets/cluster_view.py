"""The cluster as a widget: its workers, what runs on it, its size and its end."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import traitlets

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.shared import SHARED
from tfos_magic.errors import UsageError
from tfos_magic.notebook.views.card import drawn_at
from tfos_magic.notebook.views.choice import kernel_is_ending
from tfos_magic.notebook.views.tables import about, cluster_bundle, worker_row
from tfos_magic.notebook.views.wording import count_of
from tfos_magic.widgets.part import Part

log = logging.getLogger("tfos_magic.widgets")

SECONDS = 1.0


class ClusterView(Part):
    """A cluster as it is now, ``cluster`` or the one that magics use, with its size to change and a button to end it.

    It is looked at once a second. What scaling or stopping raises is shown, not raised, until another run has the
    workers, or none.
    """

    kind = "cluster"
    status: Any = traitlets.Dict().tag(sync=True)

    def __init__(self, cluster: TFCluster | None = None, **traits: Any) -> None:
        if cluster is not None and not hasattr(cluster, "queue"):
            raise UsageError(
                f"{type(cluster).__name__} is not a cluster: give a TFCluster, or nothing for that of the magics."
            )
        self.cluster = cluster
        self._error = self._busy = ""
        self._had: list[Any] = []  # what had the workers when the error came
        super().__init__(None, status=values_of(None, []), **traits)
        self.on_msg(self._hear)
        self.look()
        _WATCH.add(self)

    def look(self) -> None:
        """Show what the cluster is like at this moment; nothing more where the kernel was asked to end."""
        if kernel_is_ending():
            return
        cluster = self.cluster or SHARED.cluster
        runs = cluster.queue.runs if cluster else []
        if runs[:1] != self._had:
            self._error = ""
        self.status = {**values_of(cluster, runs, self._busy), "error": self._error, "busy": bool(self._busy)}

    def picture(self) -> dict[str, str]:
        cluster = self.cluster or SHARED.cluster
        if cluster is None:
            return {"text/html": "<p>There is no cluster.</p>", "text/plain": "There is no cluster."}
        return cluster_bundle(cluster.status())

    def kept(self) -> dict[str, str]:
        return drawn_at(self.picture())

    def close(self) -> None:
        """Look no more. The cluster stays."""
        _WATCH.drop(self)
        super().close()

    def _hear(self, _: Any, content: Any, __: Any) -> None:
        cluster = self.cluster or SHARED.cluster
        if cluster is None or self._busy or not isinstance(content, dict):
            return
        if content.get("ask") == "scale" and isinstance(workers := content.get("workers"), int):
            self._do(f"Scaling to {count_of(workers, 'worker')} …", lambda: cluster.scale(workers))
        elif content.get("ask") == "stop":
            self._do("Stopping the cluster …", SHARED.stop if cluster is SHARED.cluster else cluster.stop)

    def _do(self, what: str, work: Callable[[], Any]) -> None:
        """In a thread of its own: the kernel is free for cells meanwhile, and ``what`` is said."""
        self._error, self._busy = "", what
        self.look()
        threading.Thread(target=self._work, args=(work,), name="tfos-cluster-view", daemon=True).start()

    def _work(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:
            cluster = self.cluster or SHARED.cluster
            self._had = cluster.queue.runs[:1] if cluster else []
            self._error = str(error)
        finally:
            self._busy = ""
            self.look()


def values_of(cluster: TFCluster | None, runs: list[Any], busy: str = "") -> dict[str, Any]:
    """What the page is told of a cluster, ready to read; ``busy`` is what is done to it just now."""
    if cluster is None:
        return {"headline": "No cluster", "about": "", "runs": "", "workers": [], "size": 0, "running": False}
    status = cluster.status()
    return {
        "headline": busy or f"Cluster {status.phase}",
        "about": about(status),
        "runs": "" if busy else f"{status.reason} {_of_runs(runs)}".strip(),
        "workers": [] if status.phase == "stopped" else [worker_row(worker) for worker in status.workers],
        "size": cluster.size,
        "running": status.phase == "running",
        "busy_with": " and ".join([*(run.name for run in runs[:1]), *([f"{len(runs) - 1} more"] if runs[1:] else [])]),
    }


def _of_runs(queued: list[Any]) -> str:
    """What has the workers, a run or a map, and how many wait."""
    if not queued:
        return "Nothing runs."
    first, waiting = queued[0], f"; {count_of(len(queued) - 1, 'run')} next" if queued[1:] else ""
    of_first = str(first).strip("<>") if len(first.runs) > 1 else f"{first.name} is {first.runs[0].phase.value}"
    return f"{of_first}{waiting}."


class _Watch:
    """The one timer of all views of clusters; it goes with the last of them."""

    def __init__(self) -> None:
        self._views: weakref.WeakSet[ClusterView] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._running = False

    def add(self, view: ClusterView) -> None:
        with self._changed:
            self._views.add(view)
            if not self._running:
                self._running = True
                threading.Thread(target=self._look, name="tfos-cluster-views", daemon=True).start()

    def drop(self, view: ClusterView) -> None:
        with self._changed:
            self._views.discard(view)
            self._changed.notify_all()

    def _look(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(SECONDS)
                views = list(self._views)
                if not views:
                    self._running = False
                    return
            for view in views:
                try:
                    view.look()
                except Exception:  # of one view; the others go on
                    log.exception("The cluster could not be looked at.")


_WATCH = _Watch()
