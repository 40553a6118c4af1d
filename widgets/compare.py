"""Runs side by side: curves with one crosshair, and a table of settings by metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import traitlets
from ipywidgets import widget_serialization

from tfos_magic.cluster.runs.run import Run
from tfos_magic.notebook.views.card import part_bundle
from tfos_magic.widgets.panel import PANELS, Panel
from tfos_magic.widgets.part import Part

_SIMPLE = (bool, int, float, str)


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
        super().__init__(None, shown=list(metrics), **traits)
        self._names: dict[str, str] = {}
        self.observe(self._gather, "runs")
        self.runs = list(runs)

    def add(self, run: Run, name: str = "") -> None:
        """Compare one more run, called ``name``."""
        if name:
            self._names[run.run_id] = name
        self.runs = [*self.runs, run]

    def picture(self) -> dict[str, str]:
        bundles = [part_bundle(state, "progress") for state in [run.state for run in self.runs] or [None]]
        return {kind: "\n".join(bundle[kind] for bundle in bundles) for kind in bundles[0]}

    def _gather(self, _: Any = None) -> None:
        with self.hold_sync():
            self.panels = [PANELS.of(run) for run in self.runs]
            names = [self._names.get(run.run_id, run.name) for run in self.runs]
            settings = differing([settings_of(run) for run in self.runs])
            self.about = [{"name": name, "settings": chosen} for name, chosen in zip(names, settings, strict=True)]
        for panel in self.panels:
            panel.wanted |= set(self.shown)
        self.run = self.runs[-1] if self.runs else None


def settings_of(run: Run) -> dict[str, str]:
    """What a run was given, in words: the simple values among its names, and its options."""
    request = run.request
    names = {name: value for name, value in request.names.items() if isinstance(value, _SIMPLE)}
    options = {"batch size": request.batch_size, "strategy": request.strategy, "workers": len(run.state.workers)}
    if request.seed is not None:
        options["seed"] = request.seed
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in {**names, **options}.items()
    }


def differing(settings: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Of the settings of several runs those in which they differ; of one run all."""
    names = dict.fromkeys(name for chosen in settings for name in chosen)
    kept = [name for name in names if len(settings) == 1 or len({chosen.get(name) for chosen in settings}) > 1]
    return [{name: chosen[name] for name in kept if name in chosen} for chosen in settings]
