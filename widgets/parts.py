"""The parts of which a dashboard is made. Each shows a run by itself; :class:`RunPanel` is all of them in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import traitlets

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.shared import SHARED
from tfos_magic.errors import ClusterError
from tfos_magic.notebook.views.card import part_bundle
from tfos_magic.widgets.part import Part


def under_way(runs: Sequence[Run]) -> Run | None:
    """The first of ``runs`` that has not ended, else the last."""
    return next((run for run in runs if not run.state.phase.ended), runs[-1] if runs else None)


class Progress(Part):
    """How far the run is: a bar over all epochs, the time that remains, the last metrics."""

    kind = "progress"


class Curves(Part):
    """Metrics by epoch, and rows per second: the first six, or those that ``metrics``, later ``shown``, names.

    Of a run with several fits they are those of the last. It says so, and how many metrics have no curve.

    ``smooth``, from 0 to below 1, is what a point keeps of those before it, and what is read off are the values as they
    are; ``log_y`` draws values by their logarithms
    where all are above zero. ``cursor`` is the epoch that is pointed at, or None: linked, curves point together.
    """

    kind = "curves"
    shown: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    smooth = traitlets.Float(0.0, min=0.0, max=0.999).tag(sync=True)
    log_y = traitlets.Bool(False).tag(sync=True)
    cursor = traitlets.Float(None, allow_none=True).tag(sync=True)

    def __init__(
        self,
        run: Run | None = None,
        metrics: Sequence[str] = (),
        smooth: float = 0.0,
        log_y: bool = False,
        **traits: Any,
    ) -> None:
        shown = [metrics] if isinstance(metrics, str) else list(metrics)
        super().__init__(run, shown=shown, smooth=smooth, log_y=log_y, **traits)
        self._want()
        self.observe(self._want, ["shown", "run"])

    def picture(self) -> dict[str, str]:
        return part_bundle(self.data.state, self.kind, self.shown)

    def _want(self, _: Any = None) -> None:
        self.data.want(self.shown)


class WorkerTable(Part):
    """The workers: where they are, what they do, their pace, waits and memory. Above sixteen they are a grid.

    ``selected_worker`` is the rank that was chosen last, or None.
    """

    kind = "workers"
    selected_worker = traitlets.Int(None, allow_none=True).tag(sync=True)


class LogView(Part):
    """The last lines that the workers printed, by worker and by text."""

    kind = "log"


class StopButton(Part):
    """Ends the run at its next step, and pressed again at once. It cannot be pressed where nothing runs."""

    kind = "stop"

    def __init__(self, run: Run | None = None, **traits: Any) -> None:
        super().__init__(run, **{"layout": {"width": "max-content"}, **traits})


class FeedTable(Part):
    """The DataFrames that the run is fed: rows, bytes, seconds.

    Of a run that has ended, each has a button that frees what it takes on the workers of ``cluster``, or of the one
    that magics use; ``released`` names those that are freed. They are fed again where they are used again.
    """

    kind = "feeds"
    error = traitlets.Unicode(read_only=True).tag(sync=True)

    def __init__(self, run: Run | None = None, cluster: TFCluster | None = None, **traits: Any) -> None:
        self.cluster = cluster
        super().__init__(run, **traits)
        self.on_msg(self._hear)
        self.observe(lambda _: self.set_trait("error", ""), "run")

    @property
    def released(self) -> list[str]:
        """The names of those that are freed."""
        state = self.data.state
        return [feed.name for feed in state.feeds.values() if feed.released] if state else []

    def release(self, name: str) -> None:
        """Free the DataFrame of that name. Raises :class:`ClusterError` where a run goes on, or there is no cluster."""
        cluster = self.cluster or SHARED.cluster
        if cluster is None:
            raise ClusterError("There is no cluster, and so nothing that a DataFrame takes on its workers.")
        cluster.release(self.run.request.frames[name].frame)
        state = self.data.state
        state.feeds[name].released = True
        self.data.draw(state, log=False)
        self.set_trait("error", "")

    def _hear(self, _: Any, content: Any, __: Any) -> None:
        if self.run is None or not isinstance(content, dict) or content.get("ask") != "release":
            return
        name = str(content.get("name"))
        try:
            if name in self.run.request.frames and name not in self.released:
                self.release(name)
        except ClusterError as error:
            self.set_trait("error", str(error))


class RunPanel(Part):
    """The panel that ``%%tfos_train`` shows, for any run."""

    kind = "panel"
