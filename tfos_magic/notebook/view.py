"""What every view of a run does, and how the one to use is chosen."""

from __future__ import annotations

from typing import Protocol

from tfos_magic.cluster.state import RunState


class View(Protocol):
    """Draws a run. Called from the thread that runs the cell, at most four times a second, and never after ``close``.

    ``open`` shows the first picture under the cell, ``update`` redraws it from the same state object, ``output`` gets
    text that rank 0's cell printed, in order, and ``close`` leaves what should stay in a saved notebook.
    """

    def open(self, state: RunState) -> None: ...

    def update(self, state: RunState) -> None: ...

    def output(self, text: str, stream: str) -> None: ...

    def close(self, state: RunState) -> None: ...
