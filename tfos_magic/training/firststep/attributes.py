"""What Python code of a step keeps in attributes of the model, such as a counter or a list of losses."""

from __future__ import annotations

import copy
import functools
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack
from types import CodeType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from tfos_magic.tracebacks import is_installed
from tfos_magic.training.keras_seam.trials import MadeSomething, refuse_making
from tfos_magic.training.logs.metrics import leaf_metrics

_KEPT = (bool, int, float, complex, str, bytes, tuple, type(None), np.generic, tf.Tensor)
_COPIED = (list, dict, set, deque, np.ndarray)
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_LIBRARIES = ("keras.", "tf_keras.", "tensorflow.", "builtins")
_FLOATS = (float, np.ndarray, np.generic, ops.EagerTensor)
_LARGEST = 1 << 24
"""Bytes of an array that may be a state; larger ones are data."""

_UNSET = object()
"""Where an object has no attribute of its own, be it that its class has one."""

Name = tuple[int, str]
"""The ``id`` of an object and the name of an attribute of it."""


class Attributes:
    """The numbers, texts and containers that the user's classes keep on a model and on its layers, to be put back.

    Keras's own attributes are left alone, and where a step has made variables or layers those that may stand for them.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._is_building = False
        self.renew()

    def renew(self) -> None:
        """Take all as it is now for what is to be put back."""
        self._made = self._count()
        self._kept = {id(owner): (owner, dict(_values(owner))) for owner in _owners(self._model)}

    def while_building(self, original: Callable[..., Any], layer: Any, *args: Any) -> Any:
        """Stand around Keras's building of a layer, which may run ``call()``, for the shapes: what it changes stays."""
        if self._is_building or layer.built:
            return original(layer, *args)
        self._is_building, before = True, Attributes(self._model)
        try:
            return original(layer, *args)
        finally:
            self._is_building, now = False, Attributes(self._model)
            self._kept |= {key: kept for key, kept in now._kept.items() if key not in self._kept}
            for key, name in before.changed():
                kept, built = self._kept[key][1], now._kept[key][1]
                kept.pop(name, None)
                if name in built:
                    kept[name] = built[name]

    def restore(self, again: Callable[[], object] | None = None) -> None:
        """Put back what has changed since this was made.

        Where variables or layers were made, what has changed may stand for them, as ``self.built = True`` does, or tell
        how often the step was taken. It is put back, and the step taken ``again``: what changes another time is of the
        step. Where that makes another variable, or fails, it is what changes with all changes there.
        """
        changed = self.changed()
        if self._count() == self._made:
            self._put_back(changed)
        elif changed and again is not None:
            after = Attributes(self._model)
            of_numbers = {name for name in changed if after.holds(name)}
            self._put_back(of_numbers)
            changed_again, failed = _changed_by(again, self._model, making=False)
            after._put_back(of_numbers if failed else of_numbers - changed_again)
            if failed:
                changed_again, _ = _changed_by(again, self._model, making=True)
            self._put_back({name for name in changed if name in changed_again or after.is_symbolic(name)})

    def numbers(self) -> dict[str, list[Any]]:
        """What has changed and holds floating point numbers now, by its owner's name and its own."""
        found = {}
        for owner, name in sorted(self.changed()):
            values = _leaves(vars(self._kept[owner][0]).get(name))
            arrays = [np.asarray(value) for value in values if isinstance(value, _FLOATS)]
            if arrays := [array for array in arrays if array.dtype.kind == "f"]:
                found[self._address(owner, name)] = arrays
        return found

    def changed_names(self) -> list[str]:
        """What has changed, by its owner's name and its own."""
        return sorted(self._address(*name) for name in self.changed())

    def _address(self, key: int, name: str) -> str:
        owner = self._kept[key][0]
        return f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{name}"

    def holds(self, name: Name) -> bool:
        """Whether an attribute is there and holds nothing but numbers, texts and containers of them."""
        values = self._kept[name[0]][1]
        return name[1] in values and all(
            isinstance(value, (*_KEPT, np.ndarray)) for value in _leaves(values[name[1]][0])
        )

    def is_symbolic(self, name: Name) -> bool:
        """Whether an attribute holds tensors of a graph, which say nothing outside of it."""
        value = self._kept[name[0]][1].get(name[1], (None, None))[0]
        return any(isinstance(leaf, tf.Tensor) and not isinstance(leaf, ops.EagerTensor) for leaf in _leaves(value))

    def changed(self) -> set[Name]:
        """What has another value than when this was made."""
        return {
            (key, name)
            for key, (owner, values) in self._kept.items()
            for name in values.keys() | dict(_values(owner)).keys()
            if not _is(vars(owner).get(name, _UNSET), *values.get(name, (_UNSET, None)))
        }

    def _put_back(self, names: Set[Name]) -> None:
        for key, name in names:
            owner, values = self._kept[key]
            value, content = values.get(name, (_UNSET, None))
            if content is not None:
                _refill(value, content)
            if isinstance(owner, type):
                delattr(owner, name) if value is _UNSET else setattr(owner, name, value)
            elif value is not _UNSET:
                vars(owner)[name] = value
            else:
                vars(owner).pop(name, None)

    def _count(self) -> tuple[int, int]:
        return len(self._model.variables), sum(1 for _ in self._model._flatten_layers())


def _changed_by(step: Callable[[], object], model: Any, making: bool) -> tuple[set[Name], bool]:
    """What ``step`` changes, and whether it failed, as it does where it makes variables or layers without leave."""
    before, python, numpy = Attributes(model), random.getstate(), np.random.get_state()
    failed = False
    with ExitStack() as stack:
        if not making:
            refuse_making(stack)
        try:
            step()
        except (Exception, MadeSomething):  # of the user's code: training will raise it again, if it is real
            failed = True
    random.setstate(python)
    np.random.set_state(numpy)
    return before.changed(), failed


def _values(owner: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The attributes of ``owner`` that are the user's, and copies of what containers hold."""
    kind: Any = owner if isinstance(owner, type) else owner.__class__
    for name, value in list(vars(owner).items()):
        if name not in _of_keras() and name[:2] != "__" and (name[0] != "_" or name in _named_by(kind)):
            if isinstance(value, _KEPT):
                yield name, (value, None)
            elif isinstance(value, _COPIED) and getattr(value, "nbytes", 0) <= _LARGEST:
                yield name, (value, copy.copy(value))
            elif isinstance(value, _GENERATORS):
                yield name, (value, _state(value))


def _owners(model: Any) -> list[Any]:
    """The objects of the user's classes that take part in a step of ``model``, what they hold, and these classes."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    # Those of compile() are among the model's metrics from its first step on.
    compiled = getattr(getattr(model, "_compile_metrics", None), "_user_metrics", None)
    metrics = [*leaf_metrics(model), *tf.nest.flatten(compiled)]
    variables = model.trainable_variables
    parts = [part for v in variables for part in (getattr(v, "regularizer", None), getattr(v, "constraint", None))]
    taking_part = [*model._flatten_layers(), getattr(model, "optimizer", None), *losses, *metrics, *parts]
    owners = {id(o): o for o in taking_part if _own_classes(type(o)) and hasattr(o, "__dict__")}
    held = list(owners.values())
    while held:
        values = (value for value in vars(held.pop()).values() if id(value) not in owners and _is_users(value))
        for value in values:
            owners[id(value)] = value
            held.append(value)
    classes = {id(kind): kind for owner in owners.values() for kind in _own_classes(type(owner))}
    return [*owners.values(), *classes.values()]


def _is_users(value: Any) -> bool:
    """Whether something is an object of a class that the cell, or a module beside the notebook, defines."""
    name = getattr(type(value), "__module__", "")
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    local = bool(file) and name.partition(".")[0] not in (*sys.stdlib_module_names, "tfos_magic")
    return hasattr(value, "__dict__") and (name == "__main__" or (local and not is_installed(file)))


def _own_classes(kind: type) -> list[type]:
    return [own for own in kind.__mro__ if not own.__module__.startswith(_LIBRARIES)]


def names_in_code(model: Any) -> frozenset[str] | None:
    """The names in the user's code of a model's layers; None where all of it is Keras's."""
    layers = list(model._flatten_layers())
    functions = [layer.function for layer in layers if isinstance(layer, keras.layers.Lambda)]
    names = [frozenset(_names_in(f.__code__)) for f in functions if hasattr(f, "__code__")]
    names += [_named_by(layer.__class__) for layer in layers if _own_classes(type(layer))]
    return frozenset().union(*names) if names else None


@functools.cache
def _of_keras() -> frozenset[str]:
    """The attributes that every model has, but for the wish to end its training."""
    return frozenset(vars(keras.Model(name="attributes"))) - {"stop_training"}


@functools.cache
def _named_by(kind: type) -> frozenset[str]:
    """The names of attributes, and others, in functions of the user's classes."""
    functions = [value for own in _own_classes(kind) for value in vars(own).values()]
    return frozenset(name for f in functions if hasattr(f, "__code__") for name in _names_in(f.__code__))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _leaves(value: Any) -> Iterator[Any]:
    values = value.values() if isinstance(value, dict) else value
    if isinstance(values, (list, tuple, set)) or values is not value:
        for part in values:
            yield from _leaves(part)
    else:
        yield value


def _is(value: Any, kept: Any, content: Any) -> bool:
    return value is kept and (content is None or _same(value, content))


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _same(container: Any, content: Any) -> bool:
    if isinstance(container, np.ndarray):
        return np.array_equal(container, content, equal_nan=container.dtype.kind in "fc")
    if isinstance(container, _GENERATORS):
        return pickle.dumps(_state(container)) == pickle.dumps(content)
    if isinstance(container, (list, deque)):
        return len(container) == len(content) and all(a is b for a, b in zip(container, content, strict=True))
    if isinstance(container, dict):
        return container.keys() == content.keys() and all(container[key] is content[key] for key in content)
    return bool(container == content)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = content
    elif isinstance(container, list):
        container[:] = list(content)
    elif isinstance(container, np.random.Generator):
        container.bit_generator.state = content
    elif isinstance(container, random.Random):
        container.setstate(content)
    elif isinstance(container, np.random.RandomState):
        container.set_state(content)
    else:
        container.clear()
        put = container.extend if isinstance(container, deque) else container.update
        put(content)
