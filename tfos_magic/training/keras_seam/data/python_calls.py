"""Calls of the cell's Python code by input pipelines, which run ahead of the steps on threads of their own."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from tensorflow.python.ops.script_ops import FuncRegistry

from tfos_magic.training.keras_seam.seams import wrap

_BUSY = -1


class PythonCalls:
    """Tells whether such code, which may draw random numbers, has run since some moment."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._begun = self._running = 0

    def install(self, stack: ExitStack) -> None:
        """Heed what TensorFlow calls until ``stack`` closes."""
        wrap(stack, FuncRegistry, "__call__", self._call)

    def mark(self) -> int:
        """This moment, for :meth:`any_since`."""
        with self._lock:
            return _BUSY if self._running else self._begun

    def any_since(self, mark: int) -> bool:
        """Whether any such code has run, if only in part, since ``mark``."""
        with self._lock:
            return self._begun != mark

    def _call(self, original: Any, registry: Any, token: Any, *args: Any) -> Any:
        if threading.get_ident() == self._thread or _is_ours(registry.get(token)):
            return original(registry, token, *args)
        with self._lock:
            self._begun += 1
            self._running += 1
        try:
            return original(registry, token, *args)
        finally:
            with self._lock:
                self._running -= 1


def _is_ours(function: Any) -> bool:
    return getattr(function, "__module__", "").startswith("tfos_magic.")
