"""What every view of a run does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tfos_magic.cluster.runs.state import RunState


class View(Protocol):
    """Draws a run. Called from the thread that runs the cell, at most four times a second, and never after ``close``.

    ``open`` shows the first picture under the cell, ``update`` redraws it from the same state object, ``output`` gets
    text that rank 0's cell printed, in order, ``show`` what it displayed, and ``close`` leaves what should stay in a
    saved notebook.
    ``tensorboard`` offers the TensorBoard at a URL, before or after ``open``; False means that the view has no place
    for it, and that the caller shows it. ``detach`` comes before ``open`` where the kernel is free while the run goes
    on: all else comes from another thread then, and ``stop`` ends the run. ``again`` shows the run once more, in
    another cell.
    """

    def open(self, state: RunState) -> None: ...

    def update(self, state: RunState) -> None: ...

    def output(self, text: str, stream: str, rank: int = 0) -> None: ...

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None: ...

    def tensorboard(self, url: str) -> bool: ...

    def detach(self, stop: Callable[[], Any]) -> None: ...

    def again(self, state: RunState) -> None: ...

    def close(self, state: RunState) -> None: ...
