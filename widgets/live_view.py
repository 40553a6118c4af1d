"""The view that shows a run in the live panel and leaves the static card."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.display import display

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.card import card_bundle
from tfos_magic.notebook.views.choice import kernel_id, kernel_is_ending
from tfos_magic.notebook.views.html import BelowView
from tfos_magic.widgets.spare_card import SpareCard, kept_after, without_panel

if TYPE_CHECKING:
    from tfos_magic.widgets.answering import Answering
    from tfos_magic.widgets.panel import Panel


ENDED_KEPT = 8
_ENDED: deque[Panel] = deque()
"""The panels of the last runs that ended, for pages that come back after that."""


class WidgetView(BelowView):
    """Shows the panel under the cell. On close the panel's output becomes the card, which needs no kernel.

    A spare card stands below it for pages that cannot draw the panel, to which the panel's output says so.
    """

    def __init__(self) -> None:
        self._panel: Panel | None = None
        self._spare = SpareCard()
        self._handle: Any = None
        self._tensorboard_url = ""
        self._answering: Answering | None = None
        self._stop: Callable[[], Any] | None = None

    def open(self, state: RunState) -> None:
        from tfos_magic.widgets.answering import Answering
        from tfos_magic.widgets.panel import PANELS, Panel

        self._answering = Answering()
        urls = {"tensorboard_url": self._tensorboard_url, "kernel_id": kernel_id()}
        self._panel = Panel(state, **urls, detached=self._stop is not None)
        PANELS.add(self._panel, state.run_id)
        self._panel.on_msg(self._hear)
        panel_bundle, _ = self._panel._repr_mimebundle_()
        self._handle = display({**panel_bundle, **without_panel(state)}, raw=True, display_id=True)

    def update(self, state: RunState) -> None:
        if self._panel is None or kernel_is_ending():
            return
        self._panel.follow(state)
        self._spare.follow(state)
        if self._answering is not None:
            self._answering.poll()

    def tensorboard(self, url: str) -> bool:
        """Offer the TensorBoard at ``url`` in a tab of the panel; before or after ``open``."""
        self._tensorboard_url = url
        if self._panel is not None:
            self._panel.tensorboard_url = url
        return True

    def detach(self, stop: Callable[[], Any]) -> None:
        """The page's Stop reaches the kernel as a message from now on."""
        self._stop = stop

    def again(self, state: RunState) -> None:
        """Display the panel, which is live, or the card when it has become that."""
        panel_bundle = self._panel._repr_mimebundle_()[0] if self._panel is not None else {}
        display({**panel_bundle, **card_bundle(state)}, raw=True)

    def _hear(self, _: Any, content: Any, __: Any) -> None:
        if self._stop is not None and content == {"ask": "stop"}:
            self._stop()

    def close(self, state: RunState) -> None:
        if kernel_is_ending():
            return
        self._spare.close()  # first: no page shows two cards
        if self._handle:
            self._handle.update(card_bundle(state), raw=True)
        if self._answering is not None:
            self._answering.close()
        if self._panel is None:
            return
        # A page that is loaded anew, another cell, or parts of a dashboard know the panel but not the display that
        # became the card: the panel stays there, and brings the card along.
        self._panel.draw(state)
        self._panel.kept = {**self._panel.kept, **kept_after(state)}
        asked = self._answering is not None and self._answering.asked
        if not (self._stop is not None or asked or self._panel.shared):
            _ENDED.append(self._panel)
            if len(_ENDED) > ENDED_KEPT:
                _ENDED.popleft().close()
        self._panel = self._answering = None
