"""A run as plain text: one redrawn line on a terminal, one line per event everywhere else."""

from __future__ import annotations

import shutil
import sys
from typing import Any, TextIO

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.cluster.startup import SAY_SECONDS
from tfos_magic.notebook.views.card import show_card
from tfos_magic.notebook.views.picture import (
    awaiting,
    epoch_text,
    feed_text,
    metrics_text,
    position,
    preparing,
    summary,
)
from tfos_magic.notebook.views.time_spent import told
from tfos_magic.notebook.views.view import View
from tfos_magic.notebook.views.wording import duration

_CLEAR_LINE = "\r\x1b[2K"
_BAR_CELLS = 20


class _Screen:
    """Writes lines, and a status that is cleared before anything else is written; never tears a line of the cell.

    Without a stream it writes to ``sys.stdout`` and ``sys.stderr`` as they are at each moment: a kernel replaces them.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._open_line = False
        self._status_shown = False

    @property
    def terminal(self) -> bool:
        return self._target("stdout").isatty()

    def raw(self, text: str, stream: str = "stdout") -> None:
        if not text:
            return
        self.clear()
        self._write(text, stream)
        self._open_line = not text.endswith("\n")

    def line(self, text: str) -> None:
        self.raw(("\n" if self._open_line else "") + text + "\n")

    def status(self, text: str) -> None:
        self._write(("\n" if self._open_line else _CLEAR_LINE) + text)
        self._open_line, self._status_shown = False, True

    def clear(self) -> None:
        if self._status_shown:
            self._write(_CLEAR_LINE)
        self._status_shown = False

    def _write(self, text: str, stream: str = "stdout") -> None:
        target = self._target(stream)
        target.write(text)
        target.flush()

    def _target(self, stream: str) -> TextIO:
        return self._stream or (sys.stderr if stream == "stderr" else sys.stdout)


class _Events:
    """What happened since the last call, one line each; told from the state, so that no update need come in time."""

    def __init__(self) -> None:
        self._feeds: set[str] = set()
        self._notices = 0
        self._fit = self._epochs = 0
        self._waited = 0.0

    def feeds(self, state: RunState) -> list[str]:
        new = [feed for feed in state.feeds.values() if (feed.done or feed.reused) and feed.name not in self._feeds]
        self._feeds |= {feed.name for feed in new}
        return [f"{feed.name}: {feed_text(feed)}" for feed in new]

    def notices(self, state: RunState) -> list[str]:
        notices = told(state)
        new, self._notices = notices[self._notices :], len(notices)
        return [f"note: {text}" for text in new]

    def waits(self, state: RunState) -> list[str]:
        """Each wait that takes some seconds, once."""
        text = _long_wait(state)
        if not text or state.awaited is None or state.awaited.since == self._waited:
            return []
        self._waited = state.awaited.since
        return [text]

    def epochs(self, state: RunState) -> list[str]:
        """Each epoch of all fits once, and those again that are trained again."""
        lines: list[str] = []
        for fit in [fit for fit in state.earlier if fit >= self._fit]:
            passed = list(state.earlier[fit].items())[self._epochs if fit == self._fit else 0 :]
            lines += [f"epoch {epoch + 1:,} · {metrics_text(metrics)}" for epoch, metrics in passed]
        count = len(state.history)
        if state.fit > self._fit:
            start = 0
        elif state.fit == self._fit and count >= self._epochs:
            start = self._epochs
        else:  # trained again
            start = max(count - 1, 0)
        self._fit, self._epochs = state.fit, count
        return lines + [epoch_text(state, epoch) for epoch in range(start, count)]


class TextView(View):
    """Prints a run.

    On a terminal one line is redrawn, with notices and text of the cell above it. Elsewhere (nbclient, papermill, a
    pipe, a log file) there is one line at the start, one per DataFrame fed, per epoch, per notice and per wait of some
    seconds, and one at the end: never more, however long the run. With ``card`` the end is the static card, whose plain
    text is that last line.
    """

    def __init__(self, stream: TextIO | None = None, *, card: bool = False) -> None:
        self._screen = _Screen(stream)
        self._events = _Events()
        self._card = card
        self._live = False

    def open(self, state: RunState) -> None:
        self._live = self._screen.terminal
        if not self._live:
            self._screen.line(summary(state))
        self.update(state)

    def update(self, state: RunState) -> None:
        self._print_events(state)
        if self._live:
            self._screen.status(_status_line(state))

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        """Print text of rank 0's cell as it is, on the stream it was printed to."""
        self._screen.raw(text, stream)

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        """Print what rank 0's cell showed, as text."""
        self._screen.line(str(data.get("text/plain", "")))

    def close(self, state: RunState) -> None:
        self._screen.clear()
        self._print_events(state)
        if self._card:
            show_card(state)
        else:
            self._screen.line(summary(state))

    def _print_events(self, state: RunState) -> None:
        events, notices = self._events, self._events.notices(state)
        lines = notices if self._live else [*events.feeds(state), *notices, *events.waits(state), *events.epochs(state)]
        for line in lines:
            self._screen.line(line)


def _long_wait(state: RunState) -> str:
    """What has been waited for by now, where that takes some seconds."""
    awaited = state.awaited
    return "" if awaited is None or state.clock() - awaited.since < SAY_SECONDS else awaiting(state)


def _status_line(state: RunState) -> str:
    """What is waited for, or a bar and the summary: cut to the terminal's width so that clearing one line clears it."""
    filled = round(_BAR_CELLS * state.fraction)
    parts = [f"[{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {summary(state)}"]
    if not (state.phase.ended or position(state)):
        parts += [text for text in (preparing(state), duration(state.elapsed)) if text]
    return (_long_wait(state) or " · ".join(parts))[: shutil.get_terminal_size().columns - 1]
