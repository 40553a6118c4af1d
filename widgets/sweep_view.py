"""The live panel of a sweep, and the view that shows it under a cell and leaves the card."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anywidget
import traitlets
from IPython.display import display

from tfos_magic.notebook.sweeping.card import card_bundle
from tfos_magic.notebook.sweeping.picture import importance, row_of, take_picture
from tfos_magic.notebook.views.choice import kernel_id, kernel_is_ending
from tfos_magic.widgets.module import MODULE, STYLE

if TYPE_CHECKING:
    from tfos_magic.sweeps.sweep import Sweep
    from tfos_magic.widgets.answering import Answering

BLOCKS = 64
IMPORTANCE_SECONDS = 5.0


class SweepPanel(anywidget.AnyWidget):
    """Draws a sweep: the best so far, its trials as rows, their curves over one another, which parameters matter.

    ``picture`` is its head, as :func:`take_picture` gives it. The trials are rows as :func:`row_of` gives them, in
    ``blocks``, each a trait of its own: of a thousand trials those are sent that have changed. ``importance`` holds
    ``[name, share]``; ``metric`` is what is searched for, and ``maximize`` whether more of it is better.
    """

    _esm = MODULE
    _css = STYLE
    kind = traitlets.Unicode("sweep").tag(sync=True)
    picture = traitlets.Dict().tag(sync=True)
    blocks: traitlets.List[Any] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    importance: traitlets.List[Any] = traitlets.List().tag(sync=True)
    metric = traitlets.Unicode().tag(sync=True)
    maximize = traitlets.Bool().tag(sync=True)
    kernel_id = traitlets.Unicode().tag(sync=True)
    detached = traitlets.Bool(False).tag(sync=True)
    run_id = traitlets.Unicode().tag(sync=True)
    kept = traitlets.Dict().tag(sync=True)

    def __init__(self, sweep: Sweep, **values: Any) -> None:
        count = len(sweep.trials)
        self._sweep, self._size = sweep, -(-count // BLOCKS) or 1
        self._marks: list[Any] = [None] * count
        self._due = 0.0
        names = [f"rows{place}" for place in range(-(-count // self._size))]
        more = {"metric": sweep.search.metric, "maximize": sweep.search.direction == "maximize"}
        super().__init__(picture=take_picture(sweep), blocks=names, run_id=uuid4().hex[:12], **more, **values)
        self.add_traits(**{name: traitlets.List().tag(sync=True) for name in names})
        self.follow()

    def follow(self) -> None:
        """Send what has changed since the last call, in one message."""
        marks = [(trial.changes, trial.run.phase, len(trial.run.state.history)) for trial in self._sweep.trials]
        changed = {place // self._size for place, mark in enumerate(marks) if mark != self._marks[place]}
        self._marks = marks
        with self.hold_sync():
            self.picture = take_picture(self._sweep)
            for block in changed:
                trials = self._sweep.trials[block * self._size : (block + 1) * self._size]
                setattr(self, f"rows{block}", [row_of(trial) for trial in trials])
            if changed and (time.monotonic() >= self._due or self._sweep.done):
                self.importance = importance(self._sweep)
                self._due = time.monotonic() + IMPORTANCE_SECONDS if self.importance else 0.0

    def close(self) -> None:
        """Close the panel and the layout model that every widget brings."""
        layout = self.layout
        super().close()
        if layout is not None:
            layout.close()


class SweepView:
    """Shows the panel under the cell; in the end its output becomes the card, which needs no kernel."""

    def __init__(self) -> None:
        self._panel: SweepPanel | None = None
        self._handle: Any = None
        self._answering: Answering | None = None

    def open(self, sweep: Sweep) -> None:
        """Show the sweep, which begins."""
        from tfos_magic.widgets.answering import Answering

        self._answering = Answering()
        self._panel = SweepPanel(sweep, kernel_id=kernel_id())
        panel_bundle, _ = self._panel._repr_mimebundle_() or ({}, {})
        note = f'<p data-kept="{self._panel.run_id}">{escape(sweep.name)} is under way.</p>'
        bundle = {**panel_bundle, "text/html": note, "text/plain": f"{sweep.name} is under way."}
        self._handle = display(bundle, raw=True, display_id=True)

    def update(self, sweep: Sweep) -> None:
        """Show what is new; called some times a second, in the thread that runs the cell."""
        if self._panel is None or kernel_is_ending():
            return
        self._panel.follow()
        if self._answering is not None:
            self._answering.poll()

    def close(self, sweep: Sweep) -> None:
        """Leave the card."""
        if self._panel is None or kernel_is_ending():
            return
        bundle = card_bundle(sweep)
        self._panel.follow()
        self._panel.kept = {self._panel.run_id: bundle}  # for pages that were loaded anew
        if self._handle is not None:
            self._handle.update(bundle, raw=True)
        if self._answering is not None:
            asked = self._answering.asked
            self._answering.close()
            if not asked:
                self._panel.close()
        self._panel = self._answering = None
