"""Runs side by side: curves with one crosshair, and a table of settings by metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import traitlets
from ipywidgets import widget_serialization

from tfos_magic.cluster.runs.run import Run
from tfos_magic.errors import UsageError
from tfos_magic.notebook.views.card import part_bundle
from tfos_magic.notebook.views.tables import differing, run_table, settings_of
from tfos_magic.widgets.panel import PANELS, Panel
from tfos_magic.widgets.part import Part, refuse_others, refuse_several


class Compare(Part):
    """The curves of ``runs`` in one chart for each metric, and a table of what they were given by what came out.

    ``runs`` may be set anew, and :meth:`add` adds one. ``metrics``, ``smooth``, ``log_y`` and ``cursor`` are as those
    of :class:`~tfos_magic.widgets.Curves`; ``hidden`` are the places of the runs that are ticked off. The traits of a
    run are those of the last one.
    """

    kind = "compare"
    runs: Any = traitlets.List(help="the runs that are compared")
    panels: Any = traitlets.List(traitlets.Instance(Panel)).tag(sync=True, **widget_serialization)
    about: Any = traitlets.List().tag(sync=True)
    hidden: Any = traitlets.List(traitlets.Int()).tag(sync=True)
    shown: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    smooth = traitlets.Float(0.0, min=0.0, max=0.999).tag(sync=True)
    log_y = traitlets.Bool(False).tag(sync=True)
    cursor = traitlets.Float(None, allow_none=True).tag(sync=True)

    def __init__(self, runs: Iterable[Run] = (), metrics: Sequence[str] = (), **traits: Any) -> None:
        super().__init__(None, shown=[metrics] if isinstance(metrics, str) else list(metrics), **traits)
        self._names: dict[str, str] = {}
        self.observe(self._gather, "runs")
        self.observe(self._want, "shown")
        refuse_several(runs)
        self.runs = list(runs) if isinstance(runs, Iterable) else [runs]

    def add(self, run: Run, name: str = "") -> None:
        """Compare one more run, called ``name``."""
        if name:
            self._names[run.run_id] = name
        self.runs = [*self.runs, run]

    def picture(self) -> dict[str, str]:
        return run_table([run.state for run in self.runs]) if self.runs else part_bundle(None, "compare")

    @traitlets.validate("runs")
    def _all_checked(self, proposal: Any) -> Any:
        if None in proposal.value:
            raise UsageError("None is not a run: leave it out.")
        refuse_others(*proposal.value)
        return proposal.value

    def _gather(self, _: Any = None) -> None:
        with self.hold_sync():
            self.panels = [PANELS.of(run) for run in self.runs]
            names = [self._names.get(run.run_id, run.name) for run in self.runs]
            settings = differing([settings_of(run.state) for run in self.runs])
            self.about = [{"name": name, "settings": chosen} for name, chosen in zip(names, settings, strict=True)]
        self._want()
        self.run = self.runs[-1] if self.runs else None

    def _want(self, _: Any = None) -> None:
        for panel in self.panels:
            panel.want(self.shown)
