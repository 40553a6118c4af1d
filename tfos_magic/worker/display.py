"""What a cell shows on a worker, as the notebook would show it: ``display(...)``, figures, a last expression.

They travel as MIME bundles, made by the methods that IPython documents for objects that show themselves
(``_repr_html_`` and its kin). IPython itself belongs to the notebook: an executor may do without. Where a cell imports
it, what it has for showing shows in the notebook as well.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Bundle = dict[str, Any]
Emit = Callable[[Bundle, Bundle], None]

FIGURES_BACKEND = "module://tfos_magic.worker.figures"
_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/json": "_repr_json_",
}
_emitters: list[Emit] = []
_OF_IPYTHON = "IPython.core.display_functions"


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


def stand_in_for_ipython() -> None:
    """Let IPython's functions be those of this module, now or when a cell imports it: its own need a shell."""
    for name in (_OF_IPYTHON, "IPython.display"):
        if name in sys.modules:
            _take_over(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class DisplayHandle:
    """What ``display(…, display_id=True)`` gives: its updates are shown below."""

    def display(self, *values: Any, **_: Any) -> None:
        """Show values."""
        display(*values)

    update = display


def display(*values: Any, display_id: Any = None, raw: bool = False, **_: Any) -> DisplayHandle | None:
    """Show values as IPython's ``display`` does; its other options are taken and mean nothing here."""
    for value in values:
        if _emitters:
            _emitters[-1](*((value, {}) if raw else bundle_of(value)))
        else:
            print(value)
    return None if display_id is None else DisplayHandle()


def clear_output(wait: bool = False) -> None:
    """What was shown stays: above it is the picture of the run."""


def publish_display_data(data: Bundle, metadata: Bundle | None = None, **_: Any) -> None:
    """Show a MIME bundle."""
    if _emitters:
        _emitters[-1](data, metadata or {})


class _Finder(MetaPathFinder):
    """Puts these functions into IPython as it is loaded."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != _OF_IPYTHON:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(_load, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _load(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    load(module)
    _take_over(module)


def _take_over(module: ModuleType) -> None:
    vars(module).update(display=display, clear_output=clear_output, publish_display_data=publish_display_data)


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
    data: Bundle = {"text/plain": repr(value)}
    metadata: Bundle = {}
    if not isinstance(value, type):
        for kind, method in _METHODS.items():
            _add(data, metadata, kind, _called(value, method))
        whole, about = _pair(_called(value, "_repr_mimebundle_"))
        data.update(whole if isinstance(whole, dict) else {})
        metadata.update(about)
    if _is_figure(value):
        data["image/png"] = _png(value)
    return {kind: _text(content) for kind, content in data.items() if _is_shown(kind, content)}, metadata


def _called(value: Any, method: str) -> Any:
    """What an object's method for showing it gives; None where it has none or that fails, as for a notebook."""
    try:
        return getattr(value, method)()
    except Exception:  # any object's own; its text is shown then
        return None


def _add(data: Bundle, metadata: Bundle, kind: str, shown: Any) -> None:
    content, about = _pair(shown)
    if content is not None:
        data[kind] = content
    if about:
        metadata[kind] = about


def _pair(shown: Any) -> tuple[Any, Bundle]:
    """Content and metadata, of which methods may give both."""
    pair = isinstance(shown, tuple) and len(shown) == 2 and isinstance(shown[1], dict)
    return shown if pair and _is_shown("json", shown[1]) else (shown, {})


def _is_figure(value: Any) -> bool:
    figure = sys.modules.get("matplotlib.figure")
    return figure is not None and isinstance(value, figure.Figure)


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()


def _is_shown(kind: str, content: Any) -> bool:
    """Whether content is such as Jupyter shows: text or bytes, and for JSON what it can hold."""
    if not kind.endswith("json"):
        return isinstance(content, (str, bytes))
    try:
        json.dumps(content)
    except (TypeError, ValueError):
        return False
    return True


def _text(content: Any) -> Any:
    return base64.b64encode(content).decode() if isinstance(content, bytes) else content
