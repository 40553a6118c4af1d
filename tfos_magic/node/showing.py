"""What a cell shows on a worker, as the notebook would show it: MIME bundles, made by IPython's own formatters.

``display(...)``, matplotlib's figures and the last expression of a cell become bundles that travel to the notebook.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Bundle = dict[str, Any]
Emit = Callable[[Bundle, Bundle], None]

FIGURES_BACKEND = "module://tfos_magic.node.figures"
_emitters: list[Emit] = []


@contextmanager
def showing(emit: Emit) -> Iterator[None]:
    """Let what the cell shows go to ``emit`` as a MIME bundle and its metadata; figures left open, at the end."""
    _emitters.append(emit)
    try:
        yield
        show_figures()
    finally:
        close_figures()
        _emitters.pop()


def display(*values: Any, **_: Any) -> None:
    """Show values as IPython's ``display`` does; its options are taken and mean nothing here."""
    for value in values:
        if _emitters:
            _emitters[-1](*bundle_of(value))
        else:
            print(value)


def show_figures() -> None:
    """Show every open figure of matplotlib, and close it."""
    for figure in _open_figures():
        display(figure)
    close_figures()


def close_figures() -> None:
    """Close matplotlib's figures, so that the next cell begins without any."""
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def _open_figures() -> list[Any]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return [pyplot.figure(number) for number in pyplot.get_fignums()] if pyplot else []


def bundle_of(value: Any) -> tuple[Bundle, Bundle]:
    """The MIME bundle of ``value`` and its metadata; bytes, such as those of images, as base64 text."""
    try:
        from IPython.core.formatters import DisplayFormatter
    except ImportError:  # IPython is the notebook's; an executor may do without
        return {"text/plain": repr(value)}, {}
    formatter = DisplayFormatter()
    formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _png)
    data, metadata = formatter.format(value)
    return {kind: _text(content) for kind, content in data.items()}, dict(metadata)


def _png(figure: Any) -> str:
    from IPython.core.pylabtools import print_figure

    return str(print_figure(figure, fmt="png", base64=True))


def _text(content: Any) -> Any:
    return base64.b64encode(content).decode() if isinstance(content, bytes) else content
