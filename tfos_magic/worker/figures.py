"""A backend of matplotlib for workers: it draws in memory, and ``plt.show()`` sends the figures to the notebook.

Matplotlib finds it by ``MPLBACKEND`` and loads it with the first figure.
"""

from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from tfos_magic.worker.display import show_figures

__all__ = ["FigureCanvas", "show"]


def show(*_: Any, **__: Any) -> None:
    """What ``plt.show()`` calls."""
    show_figures()
