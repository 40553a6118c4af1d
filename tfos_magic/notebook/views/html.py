"""A run as an HTML card that is redrawn in place, for front ends that show HTML but no widgets."""

from __future__ import annotations

import sys
from typing import Any

from IPython.display import display

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.card import card_bundle
from tfos_magic.notebook.views.view import View


class BelowView(View):
    """What rank 0's cell prints and displays comes under the picture of the run."""

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        print(text, end="", file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        display(data, metadata=metadata, raw=True)


class HtmlView(BelowView):
    """Displays the card once and updates that display; the last update is what a saved notebook keeps."""

    def __init__(self) -> None:
        self._handle: Any = None

    def open(self, state: RunState) -> None:
        self._handle = display(card_bundle(state), raw=True, display_id=True)

    def update(self, state: RunState) -> None:
        if self._handle:
            self._handle.update(card_bundle(state), raw=True)

    def again(self, state: RunState) -> None:
        """Display the card as it is now."""
        display(card_bundle(state), raw=True)

    def close(self, state: RunState) -> None:
        self.update(state)
