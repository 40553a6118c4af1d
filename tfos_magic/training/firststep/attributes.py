"""What Python code of a step keeps in attributes of the model, such as a counter or a list of losses."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

_KEPT = (bool, int, float, complex, str, bytes, tuple, type(None), np.generic, tf.Tensor)
_COPIED = (list, dict, set, np.ndarray)
_LIBRARIES = ("keras.", "tf_keras.", "tensorflow.", "builtins")
_FLOATS = (float, np.ndarray, np.generic, ops.EagerTensor)
_OF_CLASS = object()
"""Where an attribute is of a class, and none of the object's own."""


class Attributes:
    """The numbers, texts and containers that the user's classes keep on a model and on its layers, to be put back.

    Keras's own attributes are left alone, and where a step has made variables or layers those that may stand for them.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._made = self._count()
        self._kept = [(owner, self._values(owner)) for owner in _owners(model)]

    def restore(self, again: Callable[[], None] | None = None) -> None:
        """Put back what has changed since this was made.

        Where variables or layers were made, that is what a step changes that is taken ``again``, with them there.
        """
        changed = self._changed()
        if changed and self._count() != self._made:
            changed &= self._changed_by(again) if again is not None else set()
        for owner, name, value, content in self._each():
            if (id(owner), name) in changed:
                vars(owner)[name] = value
                if content is not None:
                    _refill(value, content)
                if value is _OF_CLASS:
                    del vars(owner)[name]

    def numbers(self) -> dict[str, list[Any]]:
        """What has changed and holds floating point numbers now, by its owner's name and its own."""
        changed, found = self._changed(), {}
        for owner, name, _, _ in self._each():
            if (id(owner), name) in changed:
                leaves = [leaf for leaf in tf.nest.flatten(vars(owner).get(name)) if isinstance(leaf, _FLOATS)]
                arrays = [np.asarray(leaf) for leaf in leaves]
                if arrays := [array for array in arrays if array.dtype.kind == "f"]:
                    found[f"{type(owner).__name__}.{name}"] = arrays
        return found

    def _changed_by(self, step: Callable[[], None]) -> set[tuple[int, str]]:
        before, python, numpy = Attributes(self._model), random.getstate(), np.random.get_state()
        with suppress(Exception):  # of the user's code: training will raise it again, if it is real
            step()
        random.setstate(python)
        np.random.set_state(numpy)
        return before._changed()

    def _changed(self) -> set[tuple[int, str]]:
        return {
            (id(owner), name)
            for owner, name, value, content in self._each()
            if vars(owner).get(name, _OF_CLASS) is not value or (content is not None and not _same(value, content))
        }

    def _each(self) -> Iterator[tuple[Any, str, Any, Any]]:
        for owner, values in self._kept:
            for name, (value, content) in values.items():
                yield owner, name, value, content

    def _values(self, owner: Any) -> dict[str, tuple[Any, Any]]:
        of_class = {
            name: _OF_CLASS for kind in _own_classes(owner) for name, v in vars(kind).items() if _plain(name, v)
        }
        attributes = {name: value for name, value in vars(owner).items() if name not in _of_keras()}
        plain = {name: (value, None) for name, value in attributes.items() if isinstance(value, _KEPT)}
        unset = {name: (value, None) for name, value in of_class.items() if name not in vars(owner)}
        return (
            unset
            | plain
            | {name: (v, copy.copy(v)) for name, v in attributes.items() if isinstance(v, _COPIED) and name[0] != "_"}
        )

    def _count(self) -> tuple[int, int]:
        return len(self._model.variables), sum(1 for _ in self._model._flatten_layers())


def _owners(model: Any) -> list[Any]:
    """The objects of the user's classes that take part in a step of ``model``."""
    losses = tf.nest.flatten(getattr(model, "loss", None))
    variables = model.trainable_variables
    parts = [part for v in variables for part in (getattr(v, "regularizer", None), getattr(v, "constraint", None))]
    taking_part = [*model._flatten_layers(), getattr(model, "optimizer", None), *losses, *model.metrics, *parts]
    return list({id(o): o for o in taking_part if _own_classes(o) and hasattr(o, "__dict__")}.values())


def _own_classes(owner: Any) -> list[type]:
    return [kind for kind in type(owner).__mro__ if not kind.__module__.startswith(_LIBRARIES)]


def _plain(name: str, value: Any) -> bool:
    return name[0] != "_" and isinstance(value, _KEPT) and name not in _of_keras()


@functools.cache
def _of_keras() -> frozenset[str]:
    """The attributes that every model has."""
    return frozenset(vars(keras.Model(name="attributes")))


def _same(container: Any, content: Any) -> bool:
    if isinstance(container, np.ndarray):
        return np.array_equal(container, content, equal_nan=container.dtype.kind in "fc")
    if isinstance(container, list):
        return len(container) == len(content) and all(a is b for a, b in zip(container, content, strict=True))
    if isinstance(container, dict):
        return container.keys() == content.keys() and all(container[key] is content[key] for key in content)
    return bool(container == content)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = content
    elif isinstance(container, list):
        container[:] = list(content)
    else:
        container.clear()
        container.update(content)
