"""The one place that decides how often a view is drawn, and how much text it gets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.view import View

INTERVAL_SECONDS = 0.25
LINES = 2000
CHARACTERS = 1_000_000


class Throttled(View):
    """Passes on at most four updates a second, so that its caller may update as often as it likes.

    What is left out is never lost: a later update draws the same state object, and ``close`` always draws. The time a
    drawing takes counts as well, so a slow view is drawn less often rather than slowing the run.

    Of the text that a cell prints ``lines`` lines are passed on, and at most a million characters: a loop that prints
    fills no notebook. How much is left out is said in the end.
    """

    def __init__(
        self,
        view: View,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        lines: int = LINES,
    ) -> None:
        self.view = view
        self._lines, self._characters = lines, CHARACTERS
        self._cut, self._left_out = False, 0
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
        kept = self._kept(text)
        if kept:
            self.view.output(kept, stream, rank)
        if len(kept) < len(text):
            self._left_out += text[len(kept) :].count("\n")
            self._cut, self._lines, self._characters = True, 0, 0

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
            if self._cut:
                left = f"{self._left_out:,} lines" if self._left_out else "text"
                self.view.left_out(f"… {left} left out; %tfos logs has the last.\n")
            self.view.close(state)

    def _kept(self, text: str) -> str:
        """As much of ``text``, in whole lines, as may still be passed on."""
        lines = text.count("\n")
        if lines <= self._lines and len(text) <= self._characters:
            self._lines, self._characters = self._lines - lines, self._characters - len(text)
            return text
        kept = "".join(text.splitlines(keepends=True)[: self._lines])[: self._characters]
        return kept if kept.endswith("\n") or not kept else f"{kept[:-1]}\n"
