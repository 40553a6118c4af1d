"""Running a program in a trainer, or plainly, and taking what a notebook would have of it afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.corpus.noise import constant_noise


def played(path: str, floatx: str, noiseless: bool) -> dict[str, np.ndarray]:
    """Run the program in ``path`` and give all numbers that it leaves, by name: weights, histories, arrays."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with ExitStack() as stack:
        stack.callback(keras.config.set_floatx, keras.config.floatx())
        keras.config.set_floatx(floatx)
        if noiseless:
            constant_noise(stack)
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), namespace)
        public = {name: value for name, value in namespace.items() if not name.startswith("_")}
        return dict(_numbers("", public))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, keras.callbacks.History):
        value = value.history
    if isinstance(value, keras.Model):
        value = {"weights": value.weights, "optimizer": getattr(value, "optimizer", None)}
    elif isinstance(value, keras.layers.Layer):
        value = value.weights
    elif isinstance(value, keras.optimizers.Optimizer):
        value = value.variables
    if isinstance(value, Mapping):
        value = list(value.items())
    elif isinstance(value, (list, tuple)):
        value = list(enumerate(value))
    elif isinstance(value, (keras.Variable, tf.Variable, tf.Tensor, np.ndarray, np.number, int, float)):
        array = np.asarray(value)
        if array.dtype.kind in "fiub":
            yield name, array
        return
    else:
        return
    for key, inner in value:
        yield from _numbers(f"{name}.{key}" if name else str(key), inner)
