"""The widget behind the live panel: one synced JSON value, drawn by one ES module and one style sheet."""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets

_STATIC = Path(__file__).parent / "static"


class Panel(anywidget.AnyWidget):
    """Draws ``picture``, the JSON form of :class:`tfos_magic.notebook.views.picture.Picture`.

    The whole picture travels in one message per tick, however many workers there are.
    """

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"
    picture = traitlets.Dict().tag(sync=True)

    def close(self) -> None:
        """Close the panel and the layout model that every widget brings, which would stay in the kernel otherwise."""
        layout = self.layout
        super().close()
        if layout is not None:
            layout.close()
