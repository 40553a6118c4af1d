"""Which view of a run is used."""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.notebook.views.ticker import LINES, Throttled
from tfos_magic.notebook.views.view import View

VIEW_VARIABLE = "TFOS_VIEW"
TEXT_LINES = 200

# By name, so that nothing is imported that is not used, and that the widgets room plugs in from above.
_VIEWS = {
    "widget": "tfos_magic.widgets.live_view:WidgetView",
    "html": "tfos_magic.notebook.views.html:HtmlView",
    "text": "tfos_magic.notebook.views.text:TextView",
    "silent": "tfos_magic.notebook.views.view:View",
}
CHOICES = ("auto", *(name for name in _VIEWS if name != "silent"))
"""What can be asked for."""


def choose_view(requested: str = "auto", *, detached: bool = False) -> View:
    """Make the view to use: ``widget``, ``html``, ``text``, or by itself with ``auto``. Updates may come at any rate.

    A ``detached`` run is not drawn where there is no kernel: a terminal's prompt is in its place.

    The environment variable ``TFOS_VIEW`` wins over ``requested``. ``auto`` decides by what asked the kernel to run
    the cell, since while a cell runs no front end can be asked anything:

    - no IPython kernel (terminal IPython, a script): text;
    - Colab, and VS Code's notebooks (the cell's id is a URI): html;
    - JupyterLab and Notebook 7, which send the cell's id with the request: widget;
    - a widget's message, in whose callback the run is started: widget, for that page shows them;
    - a Jupyter server that runs cells itself, as those that keep documents do, and Voila: widget;
    - another client that neither names the cell nor takes input (nbclient, papermill, nbconvert): text that ends in the
      card;
    - anything else: html, whose last update is a static card wherever it runs.

    Raises :class:`~tfos_magic.errors.UsageError` for an unknown name.
    """
    kernel, name = _kernel(), chosen(requested)
    if name == "text" and detached and kernel is None:
        name = "silent"
    made = pkgutil.resolve_name(_VIEWS[name])
    return throttled(made(card=kernel is not None) if name == "text" else made(), name)


def chosen(requested: str = "auto") -> str:
    """Name the view that was asked for. Raises as :func:`choose_view` does."""
    name = os.environ.get(VIEW_VARIABLE) or requested
    if name not in CHOICES:
        source = VIEW_VARIABLE if os.environ.get(VIEW_VARIABLE) else "--view"
        raise UsageError(f"{source}: there is no view {name!r}; choose one of {', '.join(CHOICES)}")
    return detected() if name == "auto" else name


def throttled(view: View, name: str) -> Throttled:
    """The view of that name as it is used: papermill and nbconvert keep less text."""
    return Throttled(view, lines=TEXT_LINES if name == "text" and in_kernel() else LINES)


def detected() -> str:
    """Name the view for the client that runs the present cell."""
    return detect(request_of_cell(), bool(kernel_id()))


def in_kernel() -> bool:
    """Whether there are outputs of cells, which can be drawn anew."""
    return _kernel() is not None


def has_page() -> bool:
    """Whether the client that runs the present cell may show widgets: terminals, nbclient, papermill and nbconvert
    never do."""
    return detected() != "text"


def detect(request: dict[str, Any] | None, served: bool = False) -> str:
    """Name the view for the client that sent this ``execute_request``; None where there is no kernel.

    ``served`` says that a Jupyter server has started the kernel.
    """
    if request is None:
        return "text"
    if not shows_frames(request):
        return "html"
    if request.get("metadata", {}).get("cellId") or request.get("header", {}).get("msg_type") == "comm_msg":
        return "widget"
    if request.get("content", {}).get("allow_stdin", True):
        return "html"
    return "widget" if served else "text"


def shows_frames(request: dict[str, Any] | None) -> bool:
    """Whether the client that sent this ``execute_request`` shows a page of this machine in a frame.

    Colab, and VS Code's notebooks (the cell's id is a URI), show it as a link.
    """
    cell = str((request or {}).get("metadata", {}).get("cellId", ""))
    return not ("google.colab" in sys.modules or "://" in cell or cell.startswith("vscode-"))


def request_of_cell() -> dict[str, Any] | None:
    """The ``execute_request`` of the cell that runs; None where there is no kernel."""
    kernel = _kernel()
    request: dict[str, Any] | None = kernel.get_parent("shell") if kernel else None
    return request


def _kernel() -> Any:
    """The ipykernel this runs in, if any; asked of IPython only where it is loaded already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None)


def kernel_is_ending() -> bool:
    """Whether this kernel was asked to shut down: what fails now fails for that, as Spark may have gone before it."""
    return getattr(_kernel(), "_shutdown_message", None) is not None


def kernel_id() -> str:
    """How the Jupyter server names this kernel: its connection file bears the id. Empty where no server started it."""
    if "ipykernel.kernelapp" not in sys.modules:  # loading it would take over every widget's channel
        return ""
    from ipykernel.connect import get_connection_file

    try:
        name = os.path.basename(get_connection_file())
    except RuntimeError:  # not in a kernel's own process
        return ""
    match = re.fullmatch(r"kernel-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json", name)
    return match[1] if match else ""
