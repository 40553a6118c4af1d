"""What Python code of a step keeps, such as a counter or a list of losses, put back after the step was tried."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack
from types import CellType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from tfos_magic.training.checkpointing.snapshot import optimizers
from tfos_magic.training.firststep.python_objects import GENERATORS, PLAIN, Holder, reached
from tfos_magic.training.keras_seam.trials import MadeSomething, refuse_making
from tfos_magic.training.logs.metrics import leaf_metrics

_FLOATS = (float, np.ndarray, np.generic, ops.EagerTensor)
_MOST_BYTES = 1 << 26
"""Bytes of all arrays that are copied, to be put back."""

_UNSET = object()
"""Where something holds nothing by a name."""

Name = tuple[int, str]
"""The ``id`` of what holds a value, and the value's name there."""


class Attributes:
    """The numbers, texts, containers and objects that the user's code in a step of a model reaches, to be put back.

    Where a step has made variables or layers, those that may stand for them are left alone.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._is_building = False
        self.renew()

    def renew(self) -> None:
        """Take all as it is now for what is to be put back."""
        self._made = self._count()
        self._kept: dict[int, tuple[Holder, dict[str, tuple[Any, Any]]]] = {}
        left = _MOST_BYTES
        for key, holder in reached(self._model).items():
            values = _copied(holder, left)
            left -= sum(getattr(content, "nbytes", 0) for _, content in values.values())
            self._kept[key] = holder, values

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
                kept = self._kept.setdefault(key, before._kept[key])[1]
                kept.pop(name, None)
                if built := now._value(key, name):
                    kept[name] = built

    def restore(self, again: Callable[[], object] | None = None) -> None:
        """Put back what has changed since this was made.

        Where variables or layers were made, what has changed may stand for them, as ``self.built = True`` does, or tell
        how often the step was taken. It is put back, and the step taken ``again``: what changes another time is of the
        step. Where that makes another variable, or fails, it is what changes with all changes there.
        """
        changed = self.changed()
        if not self.has_made():
            now = Attributes(self._model)
            self._put_back({name for name in changed if not now.is_made(name)})
        elif changed and again is not None:
            after = Attributes(self._model)
            of_numbers = {name for name in changed if after.holds(name)}
            self._put_back(of_numbers)
            changed_again, failed = _changed_by(again, self._model, making=False)
            after._put_back(of_numbers if failed else of_numbers - changed_again)
            if failed:
                changed_again, _ = _changed_by(again, self._model, making=True)
            later = Attributes(self._model)
            after._put_back({name for name in changed_again - changed if not later.is_made(name)})
            of_step = {name for name in changed & changed_again if not after.is_made(name)}
            self._put_back(of_step | {name for name in changed if after.is_symbolic(name)})

    def has_made(self) -> bool:
        """Whether variables or layers were made since this was."""
        return self._count() != self._made

    def numbers(self) -> dict[str, list[Any]]:
        """What has changed and holds floating point numbers now, by its owner's name and its own."""
        found = {}
        for key, name in self.changed():
            values = _leaves(self._kept[key][0].values().get(name))
            arrays = [np.asarray(value) for value in values if isinstance(value, _FLOATS)]
            if arrays := [array for array in arrays if array.dtype.kind == "f"]:
                found[self._address(key, name)] = arrays
        return dict(sorted(found.items()))

    def changed_names(self) -> list[str]:
        """What has changed, by its owner's name and its own."""
        return sorted(self._address(*name) for name in self.changed())

    def _address(self, key: int, name: str) -> str:
        return self._kept[key][0].address(name)

    def _value(self, key: int, name: str) -> tuple[Any, Any] | None:
        """What was held, and a copy of what it held, where it is a container."""
        return self._kept[key][1].get(name) if key in self._kept else None

    def holds(self, name: Name) -> bool:
        """Whether something is held by a name, and nothing but numbers, texts and containers of them."""
        held = self._value(*name)
        return held is not None and all(isinstance(value, (*PLAIN, np.ndarray)) for value in _leaves(held[0]))

    def is_made(self, name: Name) -> bool:
        """Whether what is held are variables or layers."""
        leaves = _leaves((self._value(*name) or (None, None))[0])
        return any(isinstance(leaf, (tf.Variable, keras.Variable, keras.layers.Layer)) for leaf in leaves)

    def is_symbolic(self, name: Name) -> bool:
        """Whether what is held are tensors of a graph, which say nothing outside of it."""
        value = (self._value(*name) or (None, None))[0]
        return any(isinstance(leaf, tf.Tensor) and not isinstance(leaf, ops.EagerTensor) for leaf in _leaves(value))

    def holds_graph(self) -> bool:
        """Whether what has changed since this was made are tensors of a graph."""
        now = Attributes(self._model)
        return any(now.is_symbolic(name) for name in self.changed())

    def changed(self) -> set[Name]:
        """What has another value than when this was made."""
        return {
            (key, name)
            for key, (holder, values) in self._kept.items()
            for now in [holder.values()]
            for name in values.keys() | now.keys()
            if not _is(now.get(name, _UNSET), *values.get(name, (_UNSET, None)))
        }

    def _put_back(self, names: Set[Name]) -> None:
        for key, name in names:
            if key not in self._kept:
                continue
            holder, values = self._kept[key]
            value, content = values.get(name, (_UNSET, None))
            if content is not None:
                _refill(value, content)
            elif value is _UNSET:
                holder.drop(name)
            else:
                holder.put(name, value)

    def _count(self) -> tuple[int, ...]:
        """How many variables and layers there are."""
        of_optimizers = sum(len(optimizer.variables) for optimizer in optimizers(self._model))
        of_metrics = sum(len(metric.variables) for metric in leaf_metrics(self._model))
        return len(self._model.variables), of_optimizers, of_metrics, sum(1 for _ in self._model._flatten_layers())


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


def _copied(holder: Holder, left: int) -> dict[str, tuple[Any, Any]]:
    """What is held, with a copy of what a container holds; of an array if that has not more than ``left`` bytes."""
    values = holder.values()
    if "" not in values or isinstance(holder.owner, CellType):
        return {name: (value, None) for name, value in values.items()}
    value = values[""]
    if isinstance(value, GENERATORS):
        return {"": (value, _state(value))}
    return {"": (value, _content(value) if getattr(value, "nbytes", 0) <= left else None)}


def _content(container: Any) -> Any:
    """What a container holds, in one that Keras does not follow."""
    if isinstance(container, np.ndarray):
        return container.copy()
    plain: type = dict if isinstance(container, dict) else set if isinstance(container, set) else list
    return plain(container)


def _leaves(value: Any) -> Iterator[Any]:
    values = value.values() if isinstance(value, dict) else value
    if isinstance(values, (list, tuple, set, deque)) or values is not value:
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
    if isinstance(container, GENERATORS):
        return pickle.dumps(_state(container)) == pickle.dumps(content)
    if isinstance(container, (list, deque)):
        return len(container) == len(content) and all(a is b for a, b in zip(container, content, strict=True))
    if isinstance(container, dict):
        return container.keys() == content.keys() and all(container[key] is content[key] for key in content)
    return bool(container == content)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = content
    elif isinstance(container, np.random.Generator):
        container.bit_generator.state = content
    elif isinstance(container, random.Random):
        container.setstate(content)
    elif isinstance(container, np.random.RandomState):
        container.set_state(content)
    else:
        # Keras's containers would make others of those within them.
        kind: Any = type(container)
        kind = kind.__base__ if kind.__module__.startswith("keras.") else kind
        kind.clear(container)
        put = kind.extend if isinstance(container, (list, deque)) else kind.update
        put(container, content)
