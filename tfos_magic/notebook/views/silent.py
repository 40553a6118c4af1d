"""Nothing at all: for a run behind a terminal's prompt, where whatever is printed lands in what is being typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfos_magic.cluster.runs.request import Ignore
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.picture import summary


class SilentView(Ignore):
    """Shows a run when asked to, as one line."""

    def open(self, state: RunState) -> None:
        """Show nothing."""

    def close(self, state: RunState) -> None:
        """Show nothing."""

    def tensorboard(self, url: str) -> bool:
        """There is no place for it."""
        return False

    def detach(self, stop: Callable[[], Any]) -> None:
        """Nothing changes."""

    def again(self, state: RunState) -> None:
        """Print where the run is."""
        print(f"{state.name}: {summary(state)}")
