"""The view that shows a run in the live panel and leaves the static card."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.display import display

from tfos_magic.cluster.state import RunState
from tfos_magic.notebook.views.card import card_bundle
from tfos_magic.notebook.views.picture import take_picture

if TYPE_CHECKING:
    from tfos_magic.widgets.panel import Panel


class WidgetView:
    """Shows the panel under the cell. On close the panel's output becomes the card, which needs no kernel.

    The output carries the card beside the panel from the start, for a page without the widget extension.
    """

    def __init__(self) -> None:
        self._panel: Panel | None = None
        self._handle: Any = None

    def open(self, state: RunState) -> None:
        from tfos_magic.widgets.panel import Panel

        self._panel = Panel(picture=take_picture(state).as_json())
        panel_bundle, _ = self._panel._repr_mimebundle_()
        self._handle = display({**panel_bundle, **card_bundle(state)}, raw=True, display_id=True)

    def update(self, state: RunState) -> None:
        if self._panel:
            self._panel.picture = take_picture(state).as_json()

    def output(self, text: str, stream: str) -> None:
        """Print text of rank 0's cell under the panel."""
        print(text, end="", file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)

    def close(self, state: RunState) -> None:
        if self._handle:
            self._handle.update(card_bundle(state), raw=True)
        if self._panel:
            self._panel.close()
            self._panel = None
