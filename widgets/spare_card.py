"""A card beside the live panel, for pages that cannot draw that: without widgets, without trust, without the kernel."""

from __future__ import annotations

import time
from html import escape
from typing import Any

from IPython.display import display

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.card import as_of, card_bundle
from tfos_magic.notebook.views.picture import summary

FIRST_SECONDS, SECONDS_BETWEEN = 3.0, 10.0

# Where the panel cannot be drawn again, JupyterLab writes a line or an error in its place: a node without children.
_AN_ERROR = ".jp-OutputArea-output.lm-Panel:not([data-mime-type]):not(:has(*))"
NO_ERROR = (
    f".jp-OutputArea-child:has(~ .jp-OutputArea-child .tfos-spare) {_AN_ERROR}, "
    f".jp-OutputArea-child:has(.tfos-spare) ~ .jp-OutputArea-child {_AN_ERROR} {{ display: none }}"
)
_NOTE = "The live panel needs its kernel, widgets, and a notebook that is trusted."
EMPTY = {"text/html": "", "text/plain": ""}
_MUTED = "color:var(--jp-ui-font-color2,inherit);font-size:13px;margin:4px 0"


class SpareCard:
    """An output of its own, at most ``SECONDS_BETWEEN`` old: drawing the panel's own output again would build the panel
    anew. The panel hides it, and :meth:`close` empties it, for the panel's output is the card then."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._due = time.monotonic() + FIRST_SECONDS

    def follow(self, state: RunState) -> None:
        """Draw the run as it is now, where that is due."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + SECONDS_BETWEEN
        bundle = _bundle(state)
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.update(EMPTY, raw=True)


def without_panel(state: RunState) -> dict[str, str]:
    """What a page shows in the place of a panel that it cannot draw: a picture of the run comes below."""
    html = f'<p data-kept="{escape(state.run_id)}" style="{_MUTED}">{escape(state.name)} is under way.</p>'
    return {"text/html": html, "text/plain": summary(state)}


def kept_after(state: RunState) -> dict[str, dict[str, str]]:
    """What the outputs of a run's panel and of its spare card are to be after the run, by their ``data-kept``."""
    return {state.run_id: card_bundle(state), f"{state.run_id}-spare": EMPTY}


def _bundle(state: RunState) -> dict[str, str]:
    card = as_of(state, card_bundle(state))
    run_id = escape(state.run_id)
    opened = f'<div class="tfos-spare" data-run="{run_id}" data-kept="{run_id}-spare"><style>{NO_ERROR}</style>'
    return {**card, "text/html": f'{opened}{card["text/html"]}<p style="{_MUTED}">{_NOTE}</p></div>'}
