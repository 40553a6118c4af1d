"""The reader of what :mod:`pickler` writes: objects of Keras get their state, datasets are built, when all is there."""

from __future__ import annotations

import linecache
import pickle
from collections.abc import Callable, Iterable, Set
from enum import Enum
from functools import partial
from typing import Any, BinaryIO

import cloudpickle

from tfos_magic.values import classes, datasets, objects, originals, tensors

SET_ANEW = "__tfos_set_anew__"


class Unpickler(pickle.Unpickler):
    """Reads what a :class:`Pickler` wrote, all of it by one call of :meth:`load_all`.

    Datasets are built when all is there, or, with ``later``, put into that list, for :func:`~datasets.build`.

    Classes that come back to where they were defined are those that are there. With ``keeps`` they stay as they are:
    else their methods would be copies, which see the globals of where they have been.

    With ``main``, the names of a main module, functions of the main module that they come from see those. What such a
    function names is put there, unless it is there and was not set anew where the function comes from. With both,
    objects of Keras and variables that were sent from here are what they were, with the state that they have now.
    """

    def __init__(
        self,
        file: BinaryIO,
        buffers: Iterable[Any] = (),
        *,
        keeps: bool = False,
        main: dict[str, Any] | None = None,
        later: list[datasets.Unbuilt] | None = None,
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._unbuilt: list[datasets.Unbuilt] = [] if later is None else later
        self._builds = later is None
        self._keeps, self._main = keeps, main
        self._set_anew: Set[str] = frozenset()
        self._kept: set[type] = set()
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def find_class(self, module: str, name: str) -> Any:
        attribute = super().find_class(module, name)
        if attribute is datasets.empty:
            return self._dataset
        if self._keeps and self._main is not None and attribute in (objects.empty, tensors.variable):
            return partial(self._original_object if attribute is objects.empty else _original_variable, attribute)
        if module != cloudpickle.cloudpickle.__name__:
            return attribute
        if self._main is not None and name in ("_make_function", "_function_setstate"):
            return partial(self._make_function if name == "_make_function" else self._set_function, attribute)
        if name in ("_make_skeleton_class", "_make_skeleton_enum"):
            return partial(self._make_class if self._keeps else classes.make, attribute)
        if not self._keeps:
            return attribute
        return partial(self._set_class, attribute) if name == "_class_setstate" else attribute

    def _dataset(self, *made_by: Any) -> Any:
        self._unbuilt.append(datasets.empty(*made_by))
        return self._unbuilt[-1].dataset

    def _original_object(self, make: Callable[..., Any], kind: type, made_by: str, token: str) -> Any:
        original = originals.by_token(token)
        if type(original) is not kind:
            return make(kind, made_by, token)
        self._before.append((original, dict(original.__dict__)))
        return original

    def _make_class(self, make: Callable[..., type], *args: Any) -> type:
        known = args[-2] in cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        made = classes.make(make, *args)
        if known:
            self._kept.add(made)
            if not issubclass(made, Enum):
                classes.set_bases(made, args[2])
        return made

    def _set_class(self, set_state: Callable[..., type], made: type, state: Any) -> type:
        if made not in self._kept:
            return set_state(made, state)
        if not issubclass(made, Enum):
            classes.set_values(made, state[0])
        return made

    def _make_function(self, make: Callable[..., Any], code: Any, around: dict[str, Any], *args: Any) -> Any:
        if self._main is None or SET_ANEW not in around:
            return make(code, around, *args)
        self._set_anew = around[SET_ANEW]
        return make(code, self._main, *args)

    def _set_function(self, set_state: Callable[..., None], function: Any, state: tuple[Any, dict[str, Any]]) -> None:
        if (main := self._main) is not None and function.__globals__ is main:
            named = state[1]["__globals__"].items()
            state[1]["__globals__"] = {n: v for n, v in named if n in self._set_anew or n not in main}
        set_state(function, state)

    def load_all(self) -> Any:
        """The root, when everything that it reaches is whole. Where that fails, objects from here stay as they were."""
        try:
            return self._load_all()
        except BaseException:
            for original, state in self._before:
                original.__dict__.clear()
                original.__dict__.update(state)
            raise

    def _load_all(self) -> Any:
        root, restored = self.load(), []
        while (item := self.load()) is not None:
            objects.restore(*item)
            restored.append(item[0])
        sources, registered, variables = self.load()
        for filename, text in sources.items():
            cache_source(filename, text)
        objects.finish(restored, registered, variables)
        if self._builds:
            datasets.build(self._unbuilt)
        return root


def _original_variable(make: Callable[..., Any], value: Any, options: dict[str, Any], token: str) -> Any:
    original = originals.by_token(token)
    is_same = tensors.is_variable(original) and tensors.assigned(original, value, options)
    return original if is_same else make(value, options, token)


def cache_source(filename: str, text: str) -> None:
    """Let tracebacks and :mod:`inspect` find the text of code that was compiled as ``filename``."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
