"""A cluster and the runs of a notebook in one widget."""

from __future__ import annotations

from typing import Any

import ipywidgets

from tfos_magic.cluster.runs.known_runs import KnownRuns
from tfos_magic.widgets.cluster_view import ClusterView
from tfos_magic.widgets.compare import Compare
from tfos_magic.widgets.parts import RunPanel, under_way

COMPARED = 8


class Dashboard(ipywidgets.VBox):
    """The cluster of the magics, the run that has the workers, or had them last, and the last runs compared.

    New ones join by themselves.
    """

    def __init__(self, known: KnownRuns) -> None:
        runs: list[Any] = list(known.runs)
        self.cluster = ClusterView()
        self._known = known
        self.panel = RunPanel(under_way(runs))
        self.compare = Compare(runs[-COMPARED:])
        super().__init__([self.cluster, self.panel, self.compare])
        self._calls = [run.on_change(self._turn) for run in runs]
        self._calls.append(known.on_new(self.add))

    def add(self, run: Any) -> None:
        """Show a run that has been asked for."""
        if self.comm is None:  # closed
            return
        self.compare.runs = self._known.runs[-COMPARED:]
        self._calls.append(run.on_change(self._turn))
        self._turn()

    def _turn(self, _: Any = None) -> None:
        if self.comm is not None and (run := under_way(self._known.runs)) is not self.panel.run:
            self.panel.run = run

    def close(self) -> None:
        """Show nothing more; the cluster and the runs stay."""
        for end in self._calls:
            end()
        self._calls.clear()
        for part in (self.cluster, self.panel, self.compare):
            part.close()
        super().close()
