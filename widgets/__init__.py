"""Widgets of runs and clusters: the live panel of a cell, and the parts of which dashboards are made.

Runs and clusters come in; widgets go out for pages, and cards for saved notebooks. Importing this loads neither IPython
nor a widget library; using it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_magic.widgets.cluster_view import ClusterView
    from tfos_magic.widgets.compare import Compare
    from tfos_magic.widgets.dashboard import Dashboard
    from tfos_magic.widgets.launcher import Launcher
    from tfos_magic.widgets.parts import Curves, FeedTable, LogView, Progress, RunPanel, StopButton, WorkerTable

_PARTS = ("Curves", "FeedTable", "LogView", "Progress", "RunPanel", "StopButton", "WorkerTable")
_WHERE = {
    **dict.fromkeys(_PARTS, "parts"),
    "ClusterView": "cluster_view",
    "Compare": "compare",
    "Dashboard": "dashboard",
    "Launcher": "launcher",
}

__all__ = [
    "ClusterView",
    "Compare",
    "Curves",
    "Dashboard",
    "FeedTable",
    "Launcher",
    "LogView",
    "Progress",
    "RunPanel",
    "StopButton",
    "WorkerTable",
]


def __getattr__(name: str) -> Any:
    """Load a widget when it is asked for."""
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
