"""What Python code of a step keeps in attributes of the model, such as a counter or a list of losses."""

from __future__ import annotations

import copy
import functools
from typing import Any

import keras
import numpy as np

_KEPT = (bool, int, float, complex, str, bytes, tuple, type(None), np.generic)
_COPIED = (list, dict, set, np.ndarray)


class Attributes:
    """The numbers, texts and containers that the user's classes keep on a model and on its layers, to be put back.

    Keras's own attributes are left alone, and all of them where a step has made variables or layers, for which they may
    stand.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._made = self._count()
        owners = [o for o in model._flatten_layers() if not type(o).__module__.startswith(("keras.", "tf_keras."))]
        self._kept = [(owner, self._values(owner)) for owner in owners]

    def restore(self) -> None:
        """Put back what has changed since this was made."""
        if self._count() != self._made:
            return
        for owner, values in self._kept:
            for name, (value, content) in values.items():
                if vars(owner).get(name) is not value:
                    vars(owner)[name] = value
                if content is not None:
                    _refill(value, content)

    def _values(self, owner: Any) -> dict[str, tuple[Any, Any]]:
        attributes = {name: value for name, value in vars(owner).items() if name not in _of_keras()}
        plain = {name: (value, None) for name, value in attributes.items() if isinstance(value, _KEPT)}
        return plain | {
            name: (v, copy.copy(v)) for name, v in attributes.items() if isinstance(v, _COPIED) and name[0] != "_"
        }

    def _count(self) -> tuple[int, int]:
        return len(self._model.variables), sum(1 for _ in self._model._flatten_layers())


@functools.cache
def _of_keras() -> frozenset[str]:
    """The attributes that every model has."""
    return frozenset(vars(keras.Model(name="attributes")))


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, np.ndarray):
        container[...] = content
    elif isinstance(container, list):
        if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            container[:] = list(content)
    elif container != content:
        container.clear()
        container.update(content)
