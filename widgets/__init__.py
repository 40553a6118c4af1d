"""The live panel of a run: a :class:`~tfos_magic.notebook.views.view.View` drawn by a Jupyter widget.

Importing this loads neither IPython nor a widget library; using it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_magic.widgets.view import WidgetView

__all__ = ["WidgetView"]


def __getattr__(name: str) -> Any:
    """Load the view when it is asked for."""
    if name == "WidgetView":
        from tfos_magic.widgets.view import WidgetView

        return WidgetView
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
