"""TensorFlow and Keras without two packages that Keras takes along for functions that few programs call.

Keras imports scikit-learn for ``keras.wrappers`` and matplotlib for ``keras.visualization``, where they are installed:
60 MB in a process that trains, and a quarter of the processor time in which TensorFlow loads.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_SKLEARN, _MATPLOTLIB = "sklearn", "matplotlib"
_WRAPPERS = "keras.src.wrappers"
_PUBLIC_WRAPPERS = ("keras.wrappers", "keras._tf_keras.keras.wrappers")
_GALLERY = "keras.src.visualization.plot_image_gallery"


def load_tensorflow() -> None:
    """Import TensorFlow, and with it Keras; scikit-learn and matplotlib come when something of Keras first needs them.

    Nothing is left out where TensorFlow is loaded already. Raises ``ImportError`` where it is not installed.
    """
    if "tensorflow" in sys.modules:
        return
    with _hidden(_SKLEARN, _MATPLOTLIB) as hidden:
        import tensorflow  # noqa: F401
    if _SKLEARN in hidden:
        _defer_wrappers()
    if _MATPLOTLIB in hidden and (gallery := sys.modules.get(_GALLERY)) and getattr(gallery, "plt", 0) is None:
        setattr(gallery, "plt", _Deferred("matplotlib.pyplot"))  # noqa: B010 - a module's attribute, unknown to types


@contextmanager
def _hidden(*packages: str) -> Iterator[list[str]]:
    """Let imports in this block find none of ``packages``, but those that are loaded; gives which are hidden."""
    hidden = [package for package in packages if package not in sys.modules]
    unfindable: dict[str, Any] = dict.fromkeys(hidden)
    sys.modules.update(unfindable)
    try:
        yield hidden
    finally:
        for package in hidden:
            del sys.modules[package]


def _defer_wrappers() -> None:
    """Forget the wrappers that were made without scikit-learn, and import them anew when they are asked for."""
    for name in [name for name in sys.modules if name == _WRAPPERS or name.startswith(f"{_WRAPPERS}.")]:
        del sys.modules[name]
    for name in _PUBLIC_WRAPPERS:
        if (module := sys.modules.get(name)) is not None:
            _defer_names_of(module)


def _defer_names_of(module: ModuleType) -> None:
    deferred = {name for name, value in vars(module).items() if getattr(value, "__module__", "").startswith(_WRAPPERS)}
    for name in deferred:
        delattr(module, name)

    def load(name: str) -> Any:
        if name not in deferred:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{_WRAPPERS}.sklearn_wrapper"), name)
        setattr(module, name, value)
        return value

    setattr(module, "__getattr__", load)  # noqa: B010 - read by the interpreter (PEP 562), unknown to types


class _Deferred:
    """Stands in for a module until one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
