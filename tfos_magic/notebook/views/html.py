"""A run as an HTML card that is redrawn in place, for front ends that show HTML but no widgets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from IPython.display import display

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.card import card_bundle


class HtmlView:
    """Displays the card once and updates that display; the last update is what a saved notebook keeps."""

    def __init__(self) -> None:
        self._handle: Any = None

    def open(self, state: RunState) -> None:
        self._handle = display(card_bundle(state), raw=True, display_id=True)

    def update(self, state: RunState) -> None:
        if self._handle:
            self._handle.update(card_bundle(state), raw=True)

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        """Print text of rank 0's cell under the card."""
        print(text, end="", file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        """Display what rank 0's cell showed."""
        display(data, metadata=metadata, raw=True)

    def tensorboard(self, url: str) -> bool:
        """There is no place for it in the card, which is redrawn."""
        return False

    def detach(self, stop: Callable[[], Any]) -> None:
        """Nothing changes: every picture is drawn anew."""

    def again(self, state: RunState) -> None:
        """Display the card as it is now."""
        display(card_bundle(state), raw=True)

    def close(self, state: RunState) -> None:
        self.update(state)
