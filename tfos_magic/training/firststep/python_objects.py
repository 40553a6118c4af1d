"""The objects of Python that a step may change: what the user's code in a model, its losses and metrics reaches.

That is their attributes and classes, objects of the user's classes that they hold, the globals and closures that their
functions name, and what these hold in turn. What libraries keep is left alone.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfos_magic.tracebacks import is_installed
from tfos_magic.training.logs.metrics import leaf_metrics

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, tf.Tensor)
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
CHANGEABLE = (list, dict, set, deque, np.ndarray, *GENERATORS)
_LIBRARIES = ("keras.", "tf_keras.", "tensorflow.", "builtins")
_LARGEST = 1 << 24
"""Bytes of an array that may be a state; larger ones are data."""

_MOST = 1_000
"""Elements of a container that are looked into."""


class Holder:
    """What holds values by name: an object, a class, a cell of a closure, the globals that functions name, or, under
    the name of nothing, a container itself."""

    def __init__(self, owner: Any, label: str, code_names: set[str], names: set[str] | None = None) -> None:
        self.owner, self._label, self._code_names, self.names = owner, label, code_names, names

    def address(self, name: str) -> str:
        """How a user calls what it holds."""
        return name if self.names is not None else f"{self._label}.{name}" if self._is_named else self._label

    @property
    def _is_named(self) -> bool:
        return not isinstance(self.owner, (CellType, *CHANGEABLE))

    def values(self) -> dict[str, Any]:
        """What it holds that a step may change, by name."""
        owner = self.owner
        if self.names is not None:
            held = {name: owner[name] for name in self.names if name in owner}
        elif isinstance(owner, CHANGEABLE):
            return {"": owner}
        elif isinstance(owner, CellType):
            held = _contents(owner)
        else:
            held = _own_attributes(owner, self._code_names)
        return {name: value for name, value in held.items() if _may_change(value)}

    def put(self, name: str, value: Any) -> None:
        """Let it hold ``value``."""
        if self.names is not None:
            self.owner[name] = value
        elif isinstance(self.owner, CellType):
            self.owner.cell_contents = value
        elif isinstance(self.owner, type) or not hasattr(self.owner, "__dict__"):
            setattr(self.owner, name, value)
        elif self._is_named:
            vars(self.owner)[name] = value

    def drop(self, name: str) -> None:
        """Let it hold nothing by ``name``."""
        if self.names is not None:
            self.owner.pop(name, None)
        elif isinstance(self.owner, type):
            delattr(self.owner, name)
        elif isinstance(self.owner, CellType):
            del self.owner.cell_contents
        else:
            vars(self.owner).pop(name, None)


def reached(model: Any) -> dict[int, Holder]:
    """What the user's code in a step of ``model`` may change, by the ``id`` of its owner."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    # Those of compile() are among the model's metrics from its first step on.
    compiled = getattr(getattr(model, "_compile_metrics", None), "_user_metrics", None)
    optimizer = getattr(model, "optimizer", None)
    parts = [part for v in model.trainable_variables for part in (_of(v, "regularizer"), _of(v, "constraint"))]
    walk = _Walk()
    walk.go([model, optimizer, _of(optimizer, "_learning_rate"), *losses, *leaf_metrics(model), *parts])
    walk.go(tf.nest.flatten(compiled))
    return walk.holders


class _Walk:
    """Goes from object to object, as far as they are the user's."""

    def __init__(self) -> None:
        self.holders: dict[int, Holder] = {}
        self._code_names: set[str] = set()
        self._seen: dict[int, Any] = {}
        self._next: list[tuple[Any, str]] = []

    def go(self, objects: Iterable[Any]) -> None:
        self._add("", objects)
        while self._next:
            self._visit(*self._next.pop())
        for holder in list(self.holders.values()):  # with all names that the code has
            for name, value in holder.values().items():
                self._add(holder.address(name), [value])
        if self._next:
            self.go([])

    def _add(self, label: str, values: Iterable[Any]) -> None:
        for value in values:
            if id(value) not in self._seen and not isinstance(value, PLAIN):
                self._seen[id(value)] = value
                self._next.append((value, label))

    def _visit(self, value: Any, label: str) -> None:
        if isinstance(value, FunctionType):
            if _is_of_user(value.__module__):
                self._visit_function(value)
        elif isinstance(value, (MethodType, functools.partial, staticmethod, classmethod, property)):
            self._add(label, _wrapped(value))
        elif isinstance(value, CHANGEABLE):
            self.holders[id(value)] = Holder(value, label, self._code_names)
            self._add(label, _elements(value))
        elif isinstance(value, tuple):
            self._add(label, value)
        elif hasattr(value, "_flatten_layers") and not isinstance(value, type):
            layers = list(value._flatten_layers())
            for layer in layers:
                self._hold(layer)
            self._add(label, (layer.function for layer in layers if isinstance(layer, keras.layers.Lambda)))
        else:
            self._hold(value)

    def _hold(self, owner: Any) -> None:
        kind = owner if isinstance(owner, type) else type(owner)
        if not (_is_users(owner) or _has_library(kind)) or isinstance(owner, tf.Variable | keras.Variable):
            return
        if isinstance(owner, type) and not own_classes(owner):
            return
        self._seen[id(owner)] = owner
        holder = self.holders[id(owner)] = Holder(owner, kind.__name__, self._code_names)
        own = own_classes(kind)
        if own or not _has_library(kind):
            for name, value in _own_attributes(owner, self._code_names).items():
                self._add(holder.address(name), [value])
        self._add(kind.__name__, own)
        if isinstance(owner, type) and own:
            self._add(kind.__name__, vars(owner).values())

    def _visit_function(self, function: FunctionType) -> None:
        self._code_names |= set(_names_in(function.__code__))
        self.holders[id(function)] = Holder(function, function.__name__, self._code_names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.holders[id(cell)] = Holder(cell, name, self._code_names)
            self._seen[id(cell)] = cell
            self._add(name, _contents(cell).values())
        self._add(function.__name__, [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])
        spaces = function.__globals__
        names = {name for name in _names_in(function.__code__) if not name.startswith("__")}
        holder = self.holders.setdefault(id(spaces), Holder(spaces, "", self._code_names, set()))
        assert holder.names is not None
        for name in names - holder.names:
            self._add(name, [spaces[name]] if name in spaces else [])
        holder.names |= names


def _of(owner: Any, name: str) -> Any:
    return getattr(owner, name, None)


def _contents(cell: CellType) -> dict[str, Any]:
    try:
        return {"": cell.cell_contents}
    except ValueError:  # it is empty
        return {}


def _wrapped(value: Any) -> Iterable[Any]:
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, property):
        return [value.fget, value.fset]
    return [value.__func__, _of(value, "__self__")]


def _elements(container: Any) -> Iterable[Any]:
    if isinstance(container, (np.ndarray, *GENERATORS)) or len(container) > _MOST:
        return []
    return container.values() if isinstance(container, dict) else list(container)


def _may_change(value: Any) -> bool:
    """Whether a value may be a state: not an object of a library, a function, or an array of data."""
    if isinstance(value, np.ndarray):
        return value.nbytes <= _LARGEST
    if isinstance(value, (*PLAIN, tuple, *CHANGEABLE)):
        return True
    return _is_users(value) and not isinstance(value, type | FunctionType) and not _has_library(type(value))


def _attributes(owner: Any) -> dict[str, Any]:
    if hasattr(owner, "__dict__"):
        return dict(vars(owner))
    slots = [slot for kind in type(owner).__mro__ for slot in _listed(getattr(kind, "__slots__", ()))]
    return {slot: getattr(owner, slot) for slot in slots if hasattr(owner, slot)}


def _listed(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def _own_attributes(owner: Any, code_names: set[str]) -> dict[str, Any]:
    """The attributes that are the user's, and none that Keras and TensorFlow keep on their objects."""
    kind: Any = owner if isinstance(owner, type) else owner.__class__
    held = {name: value for name, value in _attributes(owner).items() if not name.startswith("__")}
    if not _has_library(kind):
        return held
    is_users, of_keras = bool(own_classes(kind)), _of_keras()
    return {
        name: value
        for name, value in held.items()
        if name not in of_keras and (name in code_names or (is_users and name[0] != "_"))
    }


def _is_users(value: Any) -> bool:
    """Whether something is a class that the cell, or a module beside the notebook, defines, or an object of one."""
    kind = value if isinstance(value, type) else type(value)
    return isinstance(value, (SimpleNamespace, FunctionType)) or _is_of_user(kind.__module__)


@functools.cache
def _is_of_user(module: str | None) -> bool:
    if module is None or module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    local = bool(file) and module.partition(".")[0] not in (*sys.stdlib_module_names, "tfos_magic")
    return local and not is_installed(file)


def own_classes(kind: type) -> tuple[type, ...]:
    """The classes of ``kind`` that are not of Keras, TensorFlow or Python."""
    return tuple(own for own in kind.__mro__ if not own.__module__.startswith(_LIBRARIES))


def _has_library(kind: type) -> bool:
    return any(base.__module__.startswith(_LIBRARIES[:-1]) for base in kind.__mro__)


def names_in_code(model: Any) -> frozenset[str] | None:
    """The names in the user's code of a model's layers; None where all of it is Keras's."""
    layers = list(model._flatten_layers())
    functions = [layer.function for layer in layers if isinstance(layer, keras.layers.Lambda)]
    names = [frozenset(_names_in(f.__code__)) for f in functions if hasattr(f, "__code__")]
    names += [_named_by(layer.__class__) for layer in layers if own_classes(layer.__class__)]
    return frozenset().union(*names) if names else None


def has_own_code(model: Any) -> bool:
    """Whether the user's code is in a model's steps: in its layers, its losses or functions among its metrics."""
    losses = keras.tree.flatten(getattr(model, "loss", None))
    functions = [getattr(metric, "_fn", None) for metric in leaf_metrics(model)]
    given = [value for value in (*losses, *functions) if value is not None and not isinstance(value, str)]
    return names_in_code(model) is not None or any(map(is_own_code, given))


def is_own_code(value: Any) -> bool:
    """Whether a function, or an object such as a loss, is neither Keras's nor TensorFlow's, nor made of such a one."""
    module = getattr(getattr(value, "fn", value), "__module__", None)  # of an object, that of its class
    return not (module or "").startswith(_LIBRARIES)


@functools.cache
def _of_keras() -> frozenset[str]:
    """The attributes that every model has, and every optimizer, but for the wish to end its training."""
    return frozenset((*vars(keras.Model(name="attributes")), *vars(keras.optimizers.SGD()))) - {"stop_training"}


@functools.cache
def _named_by(kind: type) -> frozenset[str]:
    """The names of attributes, and others, in functions of the user's classes."""
    functions = [value for own in own_classes(kind) for value in vars(own).values()]
    return frozenset(name for f in functions if hasattr(f, "__code__") for name in _names_in(f.__code__))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
