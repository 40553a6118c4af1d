"""What several workers print and show, each line and picture under its worker's name."""

from __future__ import annotations

import sys
from typing import Any

from IPython.display import display

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.time_spent import told
from tfos_magic.notebook.views.view import View

PLAIN = "text/plain"


class PrefixedView(View):
    """Prints every line of every worker after ``[worker:k]``, as it comes, and shows what they show beneath that.

    The prefixes are those of ipyparallel's ``%%px``, with a worker for an engine.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[int, str], str] = {}

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        """Print the lines that are whole, and keep the beginning of one that is not until the rest has come."""
        *lines, begun = (self._begun.pop((rank, stream), "") + text).split("\n")
        if begun:
            self._begun[rank, stream] = begun
        self._print(rank, stream, lines)

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        """Display a MIME bundle; one that is nothing but text is printed."""
        self._finish_lines()
        if set(data) <= {PLAIN}:
            self._print(rank, "stdout", str(data.get(PLAIN, "")).split("\n"))
            return
        self._print(rank, "stdout", [""])
        display(data, metadata=metadata, raw=True)

    def left_out(self, text: str) -> None:
        """Say so of all workers together."""
        self._finish_lines()
        print(text, end="")

    def close(self, state: RunState) -> None:
        """Print what did not end with a line's end, and what the user should know."""
        self._finish_lines()
        for notice in told(state):
            print(f"note: {notice}")

    def _finish_lines(self) -> None:
        for (rank, stream), begun in sorted(self._begun.items()):
            self._print(rank, stream, [begun])
        self._begun.clear()

    def _print(self, rank: int, stream: str, lines: list[str]) -> None:
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.writelines(f"[worker:{rank}] {line}".rstrip() + "\n" for line in lines)
        target.flush()
