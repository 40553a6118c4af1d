"""The live panel of a run: a :class:`~tfos_magic.notebook.view.View` drawn by a Jupyter widget.

Importing this loads no widget library; opening the first panel does.
"""

from tfos_magic.widgets.view import WidgetView

__all__ = ["WidgetView"]
