"""What callbacks know: values of Python as JSON and arrays, and back again into the callbacks."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Mapping, MutableMapping
from types import FunctionType
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

Arrays = MutableMapping[str, npt.NDArray[Any]]

TENSOR_BYTES = 1 << 20
_OF_KERAS = frozenset({"model", "_model", "params"})


class Unfit(Exception):
    """A value that a checkpoint cannot hold."""


def freeze(value: Any, name: str, arrays: Arrays) -> Any:
    """Give ``value`` as JSON; arrays in it go to ``arrays`` under names that begin with ``name``.

    Raises :class:`Unfit` for anything but None, numbers, strings, arrays, variables and tensors of numbers up to a
    megabyte, functions of Keras such as ``ops.less``, and lists, tuples, dicts, sets and deques of them.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        key = f"{name}.{len(arrays)}"
        arrays[key] = value.copy()
        return {"array": key}
    if type(value) in (list, tuple):
        return {type(value).__name__: [freeze(item, name, arrays) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: freeze(item, name, arrays) for key, item in value.items()}}
    if type(value) in (dict, defaultdict):
        return {"pairs": [[freeze(part, name, arrays) for part in pair] for pair in value.items()]}
    if type(value) in (set, deque):
        return {type(value).__name__: [freeze(item, name, arrays) for item in value]}
    if isinstance(value, (tf.Tensor, tf.Variable, keras.Variable)) and hasattr(value, "numpy"):
        array = np.array(value.numpy())
        if array.nbytes <= TENSOR_BYTES:
            return {"tensor": freeze(array, name, arrays)}
    if isinstance(value, FunctionType) and _function_of_keras(value.__module__, value.__qualname__) is value:
        return {"function": [value.__module__, value.__qualname__]}
    raise Unfit(type(value).__name__)


def thaw(value: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Read :func:`freeze` back."""
    match value:
        case {"array": key}:
            return np.array(arrays[key])
        case {"list": items}:
            return [thaw(item, arrays) for item in items]
        case {"tuple": items}:
            return tuple(thaw(item, arrays) for item in items)
        case {"dict": items}:
            return {key: thaw(item, arrays) for key, item in items.items()}
        case {"pairs": pairs}:
            return {thaw(key, arrays): thaw(item, arrays) for key, item in pairs}
        case {"set": items}:
            return {thaw(item, arrays) for item in items}
        case {"deque": items}:
            return deque(thaw(item, arrays) for item in items)
        case {"tensor": array}:
            return tf.constant(thaw(array, arrays))
        case {"function": [module, name]}:
            return _function_of_keras(module, name)
        case _:
            return value


def put_back(owner: Any, attribute: str, value: Any) -> None:
    """Give a callback what :func:`thaw` gave: within the list, dict, set, deque or variable that it has, where it has
    one, for the cell may know that by a name of its own."""
    match vars(owner).get(attribute), value:
        case (list() as there, list()) | (deque() as there, deque()):
            there.clear()
            there.extend(value)
        case (dict() as there, dict()) | (set() as there, set()):
            there.clear()
            there.update(value)
        case (tf.Variable() | keras.Variable() as there, tf.Tensor()) if tuple(there.shape) == tuple(value.shape):
            there.assign(value)
        case _:
            setattr(owner, attribute, value)


def left_out(owner: Any) -> list[str]:
    """The attributes of a callback that checkpoints cannot hold, and that may well change: containers, metrics, and
    objects of the user's own classes."""
    kinds = (list, tuple, dict, set, deque, keras.metrics.Metric)
    own = {
        name: value
        for name, value in vars(owner).items()
        if name not in _OF_KERAS and (isinstance(value, kinds) or type(value).__module__ == "__main__")
    }
    return [name for name, value in own.items() if not callable(value) and not _fits(value)]


def _fits(value: Any) -> bool:
    try:
        freeze(value, "", {})
    except Unfit:
        return False
    return True


def _function_of_keras(module: str, name: str) -> Any:
    """A function of Keras by its name, None for any other: a checkpoint must not choose what code is taken hold of."""
    return vars(sys.modules[module]).get(name) if module.startswith("keras.") and module in sys.modules else None


def scalars(owner: Any) -> dict[str, Any]:
    """The attributes of an object that are None, numbers or strings."""
    return {k: v for k, v in vars(owner).items() if v is None or isinstance(v, (bool, int, float, str))}


def changed(owner: Any, before: Mapping[str, Any], name: str, arrays: Arrays) -> dict[str, Any]:
    """The attributes of a callback that training changed since ``before`` (:func:`scalars`), frozen.

    What the cell itself set, such as ``patience``, is not among them, so a resumed cell may set it anew.
    """
    frozen_attributes = {}
    for attribute, value in vars(owner).items():
        if attribute in _OF_KERAS or (attribute in before and _same(before[attribute], value)):
            continue
        new_arrays: dict[str, npt.NDArray[Any]] = {}
        try:
            frozen_attributes[attribute] = freeze(value, f"{name}.{attribute}", new_arrays)
        except Unfit:
            continue  # a file, a function, a thread: the callback made it and will make it again
        arrays.update(new_arrays)
    return frozen_attributes


def _same(before: Any, now: Any) -> bool:
    return type(before) is type(now) and bool(before == now)
