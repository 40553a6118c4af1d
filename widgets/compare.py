"""Runs side by side: curves with one crosshair, and a table of settings by metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
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
    of :class:`~tfos_magic.widgets.Curves`; ``hidden`` are the places of the runs that are ticked off, which stay so
    where others come or go. The traits of a run are those of the last one.
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
        self._order: list[str] = []
        self._tones: dict[str, int] = {}
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
        before, self._order = self._order, [run.run_id for run in self.runs]
        hidden = {name for place, name in enumerate(before) if place in self.hidden}
        with self.hold_sync():
            if before:
                self.hidden = [place for place, name in enumerate(self._order) if name in hidden]
            self.panels = [PANELS.of(run) for run in self.runs]
            names = [self._names.get(run.run_id, run.name) for run in self.runs]
            settings = differing([settings_of(run.state) for run in self.runs])
            self.about = [
                {"name": name, "settings": chosen, "tone": tone}
                for name, chosen, tone in zip(names, settings, self._toned(), strict=True)
            ]
        self._want()
        self.run = self.runs[-1] if self.runs else None

    def _toned(self) -> list[int]:
        """Which colour each run has: it keeps the one that it had, and no other has it."""
        kept = {run.run_id: self._tones[run.run_id] for run in self.runs if run.run_id in self._tones}
        free = (tone for tone in count() if tone not in kept.values())
        self._tones = kept | {run.run_id: next(free) for run in self.runs if run.run_id not in kept}
        return [self._tones[run.run_id] for run in self.runs]

    def _want(self, _: Any = None) -> None:
        for panel in self.panels:
            panel.want(self.shown)
