"""What every view of a run does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfos_magic.cluster.runs.request import Observer
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.picture import summary


class View(Observer):
    """Draws a run: ``open`` shows the first picture under the cell, ``update`` redraws it from the same state object,
    and ``close`` leaves what should stay in a saved notebook.

    Called from the thread that runs the cell, at most four times a second, and never after ``close``.

    This one shows nothing until it is asked to, for a run behind a terminal's prompt, where whatever is printed lands
    in what is being typed. Text that a cell prints comes in order.
    """

    def tensorboard(self, url: str) -> bool:
        """Offer the TensorBoard at ``url``, before or after ``open``; False where there is no place for it here."""
        return False

    def detach(self, stop: Callable[[], Any]) -> None:
        """Comes before ``open`` where the kernel is free while the run goes on.

        All else comes from another thread then, and ``stop`` ends the run.
        """

    def left_out(self, text: str) -> None:
        """Say that not all was shown of what the cell printed."""
        self.output(text, "stdout")

    def again(self, state: RunState) -> None:
        """Show the run once more, in another cell."""
        print(f"{state.name}: {summary(state)}")


def show_again(run: Any) -> None:
    """Show a run that goes on, in another cell: in the view it has, else in a line."""
    view = getattr(run, "observer", None)
    if isinstance(view, View):
        view.again(run.state)
    else:
        print(repr(run))
