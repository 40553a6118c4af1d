"""The values of a run in the page, sent once for all that shows them; shown by itself, it is the whole panel."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import anywidget
import traitlets

from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.choice import kernel_is_ending
from tfos_magic.notebook.views.picture import take_picture
from tfos_magic.notebook.views.worker_rows import WorkerRow, worker_rows
from tfos_magic.widgets.module import MODULE, STYLE

LOG_LINES = 240
LOG_COLUMNS = 200
MANY_WORKERS = 64
_LATER = ({"charts"}, {"charts", "workers"}, {"workers"}, {"charts", "workers"})  # what a message leaves out
LOG_SECONDS = 1.0

Rows = Callable[[RunState], list[WorkerRow]]

_NOTHING = {
    "phase": "none",
    "ended": True,
    "headline": "No run yet",
    "elapsed": "",
    "position": "",
    "fraction": None,
    "phases": [],
}


class Panel(anywidget.AnyWidget):
    """Draws :class:`tfos_magic.notebook.views.picture.Picture`.

    ``picture`` is its JSON form but for ``workers`` and ``charts``, which travel by themselves when they change; a
    worker is ``[where, state, step, fraction, pace, data, peers, memory, trouble]``, and one of very many
    ``[state, fraction, trouble]``, unless the page has asked for it by ``{"ask": "worker", "rank": 7}``. ``lines``
    holds ``[rank, line]`` in the order in which lines came. ``kernel_id`` is how the Jupyter server names this kernel,
    empty where it has none. ``detached`` says that the kernel is free while the run goes on, and hears
    ``{"ask": "stop"}``.
    ``kept`` are the bundles that outputs are to have after the run, by their ``data-kept``: updates of displays do not
    reach a page that was loaded anew, which puts them there itself.
    Of metrics beyond the first ones those in ``wanted`` have charts. ``shared`` says that parts show it too.
    """

    _esm = MODULE
    _css = STYLE
    picture = traitlets.Dict().tag(sync=True)
    workers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    charts: traitlets.List[Any] = traitlets.List().tag(sync=True)
    lines: traitlets.List[Any] = traitlets.List().tag(sync=True)
    tensorboard_url = traitlets.Unicode().tag(sync=True)
    kernel_id = traitlets.Unicode().tag(sync=True)
    detached = traitlets.Bool(False).tag(sync=True)
    run_id = traitlets.Unicode().tag(sync=True)
    kept = traitlets.Dict().tag(sync=True)

    def __init__(self, state: RunState | None = None, **values: Any) -> None:
        self.state = state
        self.wanted: set[str] = set()
        self.shared = False
        self._logged = state.printed if state else 0
        self._log_due = 0.0
        self._follows = 0
        self._asked = 0
        super().__init__(
            run_id=state.run_id if state else "", **(values_of(state) if state else _values_of_none()), **values
        )
        self.on_msg(self._hear)

    def draw(self, state: RunState, log: bool = True, without: Container[str] = ()) -> None:
        """Send what changed since the last call, in one message; the log only where asked for."""
        self.state = state
        with self.hold_sync():
            for name, value in values_of(state, log, self.wanted, self._rows(without)).items():
                if name not in without:
                    setattr(self, name, value)

    def _rows(self, without: Container[str]) -> Rows:
        """What gives the workers' rows: none where they are left out, of many the one asked for, and what is short."""
        state = self.state
        if "workers" in without:
            return lambda state: []
        many = state is not None and len(state.workers) > MANY_WORKERS
        return partial(worker_rows, detailed={self._asked}) if many else worker_rows

    def want(self, metrics: Iterable[str]) -> None:
        """Have charts of these metrics too."""
        if missing := set(metrics) - self.wanted:
            self.wanted |= missing
            if self.state is not None:
                self.draw(self.state, log=False)

    def _hear(self, _: Any, content: Any, __: Any) -> None:
        rank = content.get("rank") if isinstance(content, dict) and content.get("ask") == "worker" else None
        if isinstance(rank, int) and self.state is not None:
            self._asked = rank
            self.draw(self.state, log=False)

    def follow(self, state: RunState) -> None:
        """Draw, and the log at most once a second; of many workers these and the curves too, one after the other."""
        if kernel_is_ending():
            return
        log = state.printed != self._logged and (time.monotonic() >= self._log_due or state.phase.ended)
        if log:
            self._logged, self._log_due = state.printed, time.monotonic() + LOG_SECONDS
        self._follows += 1
        at_once = state.phase.ended or len(state.workers) <= MANY_WORKERS
        self.draw(state, log, () if at_once else _LATER[self._follows % len(_LATER)])

    def close(self) -> None:
        """Close the panel and the layout model that every widget brings, which would stay in the kernel otherwise."""
        layout = self.layout
        super().close()
        if layout is not None:
            layout.close()


class _Panels:
    """The panels of this process by their runs: a run has one, however many parts show it."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Panel] = WeakValueDictionary()

    def add(self, panel: Panel, run_id: str) -> None:
        self._known[run_id] = panel

    def of(self, run: Run | None) -> Panel:
        """The panel of ``run``, which follows it; that of no run for None."""
        run_id = run.run_id if run else ""
        panel = self._known.get(run_id)
        if panel is None or panel.comm is None:
            panel = self._known[run_id] = Panel(run.state if run else None, detached=bool(run))
            if run is not None:
                _connect(panel, run)
        panel.shared = True
        return panel


PANELS = _Panels()


def _connect(panel: Panel, run: Run) -> None:
    panel.on_msg(lambda _, content, __: run.ask_to_stop() if content == {"ask": "stop"} else None)
    run.on_change(lambda run: panel.follow(run.state))


def values_of(
    state: RunState, log: bool = True, wanted: Iterable[str] = (), rows: Rows = worker_rows
) -> dict[str, Any]:
    """The panel's values for a run, by trait."""
    taken = take_picture(state, wanted, rows)
    workers, taken = list(map(_listed, taken.workers)), replace(taken, workers=[])
    picture = taken.as_json()
    del picture["workers"]
    values = {"workers": workers, "charts": picture.pop("charts"), "picture": picture}
    return {**values, "lines": last_lines(state)} if log else values


def _listed(row: WorkerRow) -> list[Any]:
    return [*row[1:]] if row.where else [row.state, row.fraction, *([row.trouble] if row.trouble else [])]


def last_lines(state: RunState) -> list[list[Any]]:
    """The last lines of every worker, as ``[rank, line]`` in the order in which they came: at most about ``LOG_LINES``
    in all, and of each at most ``LOG_COLUMNS`` characters."""
    each = max(2, LOG_LINES // max(1, len(state.workers)))
    lines = [(order, worker.rank, line) for worker in state.workers for order, line in _tail(worker, each)]
    return [[rank, line[:LOG_COLUMNS]] for _, rank, line in sorted(lines)]


def _values_of_none() -> dict[str, Any]:
    values = values_of(RunState("", "", "", [], started=time.monotonic(), ended=time.monotonic()))
    return {**values, "picture": {**values["picture"], **_NOTHING}}


def _tail(worker: Any, count: int) -> Iterable[tuple[int, str]]:
    pairs = zip(reversed(worker.log_order), reversed(worker.log), strict=False)
    return [pair for pair, _ in zip(pairs, range(count), strict=False)]
