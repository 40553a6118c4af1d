"""The one place that decides how often a view is drawn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.view import View

INTERVAL_SECONDS = 0.25


class Throttled(View):
    """Passes on at most four updates a second, so that its caller may update as often as it likes.

    What is left out is never lost: a later update draws the same state object, and ``close`` always draws. The time a
    drawing takes counts as well, so a slow view is drawn less often rather than slowing the run.
    """

    def __init__(
        self, view: View, interval: float = INTERVAL_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.view = view
        self._interval = interval
        self._clock = clock
        self._next = 0.0
        self._closed = False

    def open(self, state: RunState) -> None:
        self.view.open(state)
        self._next = self._clock() + self._interval

    def update(self, state: RunState) -> None:
        if self._closed or self._clock() < self._next:
            return
        self.view.update(state)
        self._next = self._clock() + self._interval

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        """Pass text on at once: it is the cell's own output, and a view redraws its line around it."""
        self.view.output(text, stream, rank)

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        """Pass on at once what the cell showed."""
        self.view.show(data, metadata, rank)

    def tensorboard(self, url: str) -> bool:
        """As the view that is drawn says."""
        return self.view.tensorboard(url)

    def detach(self, stop: Callable[[], Any]) -> None:
        """As the view that is drawn does."""
        self.view.detach(stop)

    def again(self, state: RunState) -> None:
        """Show the run once more."""
        self.view.again(state)

    def close(self, state: RunState) -> None:
        """Draw the end, once."""
        if not self._closed:
            self._closed = True
            self.view.close(state)
