"""How a sweep is shown while it goes on: the live panel, a card that is drawn again, or lines of text."""

from __future__ import annotations

import pkgutil
from typing import Any

from IPython.display import display

from tfos_magic.notebook.sweeping.card import card_bundle
from tfos_magic.notebook.sweeping.picture import line_of, summary
from tfos_magic.notebook.views.choice import TEXT_LINES, chosen, in_kernel
from tfos_magic.sweeps.sweep import Sweep

_VIEWS = {
    "widget": "tfos_magic.widgets.sweep_view:SweepView",
    "html": "tfos_magic.notebook.sweeping.views:CardView",
    "text": "tfos_magic.notebook.sweeping.views:LinesView",
}


class LinesView:
    """Prints a line for each trial that has ended and for each notice, and in a notebook the card in the end."""

    def __init__(self) -> None:
        self._told: set[int] = set()
        self._notices = 0

    def open(self, sweep: Sweep) -> None:
        """Show the sweep, which begins."""
        print(summary(sweep), flush=True)

    def update(self, sweep: Sweep) -> None:
        """Show what is new; called some times a second, in the thread that runs the cell."""
        for text in sweep.notices[self._notices :]:
            print(f"note: {text}")
            self._notices += 1
        for index, trial in enumerate(sweep.trials):
            if trial.verdict and index not in self._told and trial.number is not None and len(self._told) < TEXT_LINES:
                self._told.add(index)
                print(line_of(sweep, trial), flush=True)

    def close(self, sweep: Sweep) -> None:
        """Leave what a saved notebook keeps."""
        self.update(sweep)
        if in_kernel():
            display(card_bundle(sweep), raw=True)
        else:
            print(summary(sweep), flush=True)


class CardView:
    """Displays the card once, and draws that display again."""

    def __init__(self) -> None:
        self._handle: Any = None

    def open(self, sweep: Sweep) -> None:
        """Show the sweep, which begins."""
        self._handle = display(card_bundle(sweep), raw=True, display_id=True)

    def update(self, sweep: Sweep) -> None:
        """Draw the card as it is now."""
        if self._handle is not None:
            self._handle.update(card_bundle(sweep), raw=True)

    def close(self, sweep: Sweep) -> None:
        """The last card is what a saved notebook keeps."""
        self.update(sweep)


def view_of(requested: str) -> Any:
    """The view that was asked for, or that suits what runs the cell. Raises as ``choose_view`` does."""
    return pkgutil.resolve_name(_VIEWS.get(chosen(requested), _VIEWS["html"]))()
