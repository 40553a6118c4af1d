"""The widget behind the live panel: one synced message a tick, drawn by one ES module and one style sheet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.picture import take_picture

LOG_LINES = 240
LOG_COLUMNS = 200
_STATIC = Path(__file__).parent / "static"


class Panel(anywidget.AnyWidget):
    """Draws :class:`tfos_magic.notebook.views.picture.Picture`.

    ``picture`` is its JSON form but for ``workers`` and ``charts``, which travel by themselves when they change; a
    worker is ``[where, state, step, fraction, pace, data, peers, memory, trouble]``. ``lines`` holds ``[rank, line]``
    in the order in which lines came. ``kernel_id`` is how the Jupyter server names this kernel, empty where it has
    none. ``detached`` says that the kernel is free while the run goes on, and hears ``{"ask": "stop"}``.
    """

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"
    picture = traitlets.Dict().tag(sync=True)
    workers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    charts: traitlets.List[Any] = traitlets.List().tag(sync=True)
    lines: traitlets.List[Any] = traitlets.List().tag(sync=True)
    tensorboard_url = traitlets.Unicode().tag(sync=True)
    kernel_id = traitlets.Unicode().tag(sync=True)
    detached = traitlets.Bool(False).tag(sync=True)

    def draw(self, state: RunState, log: bool = True) -> None:
        """Send what changed since the last call, in one message; the log only where asked for."""
        with self.hold_sync():
            for name, value in values_of(state, log).items():
                setattr(self, name, value)

    def close(self) -> None:
        """Close the panel and the layout model that every widget brings, which would stay in the kernel otherwise."""
        layout = self.layout
        super().close()
        if layout is not None:
            layout.close()


def values_of(state: RunState, log: bool = True) -> dict[str, Any]:
    """The panel's values for a run, by trait."""
    picture = take_picture(state).as_json()
    workers = [list(worker.values())[1:] for worker in picture.pop("workers")]
    values = {"workers": workers, "charts": picture.pop("charts"), "picture": picture}
    return {**values, "lines": last_lines(state)} if log else values


def last_lines(state: RunState) -> list[list[Any]]:
    """The last lines of every worker, as ``[rank, line]`` in the order in which they came: at most about ``LOG_LINES``
    in all, and of each at most ``LOG_COLUMNS`` characters."""
    each = max(2, LOG_LINES // max(1, len(state.workers)))
    lines = [(order, worker.rank, line) for worker in state.workers for order, line in _tail(worker, each)]
    return [[rank, line[:LOG_COLUMNS]] for _, rank, line in sorted(lines)]


def _tail(worker: Any, count: int) -> Iterable[tuple[int, str]]:
    pairs = zip(reversed(worker.log_order), reversed(worker.log), strict=False)
    return [pair for pair, _ in zip(pairs, range(count), strict=False)]
