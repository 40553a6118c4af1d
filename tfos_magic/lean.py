"""TensorFlow and Keras without three packages that Keras takes along for things that few programs do.

Keras imports scikit-learn for ``keras.wrappers``, matplotlib for ``keras.visualization`` and pandas to know DataFrames
from arrays, where they are installed: 90 MB in a process that trains, and a quarter of the processor time in which
TensorFlow loads.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

_SKLEARN, _MATPLOTLIB, _PANDAS = "sklearn", "matplotlib", "pandas"
_WRAPPERS = "keras.src.wrappers"
_PUBLIC_WRAPPERS = ("keras.wrappers", "keras._tf_keras.keras.wrappers")
_GALLERY = "keras.src.visualization.plot_image_gallery"
_SLICING = "keras.src.trainers.data_adapters.array_slicing"


def load_tensorflow() -> None:
    """Import TensorFlow, and with it Keras; what is left out comes when something of Keras first needs it.

    Nothing is left out where TensorFlow is loaded already. Raises ``ImportError`` where it is not installed.
    """
    if "tensorflow" in sys.modules:
        return
    with _hidden(_SKLEARN, _MATPLOTLIB, _PANDAS) as hidden:
        import tensorflow  # noqa: F401
    for package, defer in ((_SKLEARN, _defer_wrappers), (_MATPLOTLIB, _defer_pictures), (_PANDAS, _defer_tables)):
        if package in hidden:
            defer()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Seek no garbage in what is loaded here, now or later: that is a quarter of TensorFlow's import, and of a cell."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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


def _defer_pictures() -> None:
    gallery: Any = sys.modules.get(_GALLERY)
    if getattr(gallery, "plt", gallery) is None:
        gallery.plt = _Deferred("matplotlib.pyplot")


def _defer_tables() -> None:
    """Let Keras know pandas' objects by their classes once there are some, which is when pandas is loaded."""
    slicing: Any = sys.modules.get(_SLICING)
    if getattr(slicing, "pandas", slicing) is None:
        tables = (_OfPandas("Series", (), {}), _OfPandas("DataFrame", (), {}))
        slicing.pandas = SimpleNamespace(**{table.__name__: table for table in tables})
        slicing.ARRAY_TYPES += tables


class _OfPandas(type):
    """Stands in for pandas' class of the same name in ``isinstance``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        pandas = sys.modules.get(_PANDAS)
        return pandas is not None and isinstance(instance, getattr(pandas, cls.__name__))


class _Deferred:
    """Stands in for a module until one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
