"""What a checkpoint holds of a training: read off Keras objects as arrays and JSON, and put back into them."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, global_seed_generator
from tensorflow.python.eager import context as eager_context

from tfos_magic.errors import TrainingError
from tfos_magic.training.checkpointing.python_values import Arrays, freeze

# Variables


def optimizers(model: Any) -> list[Any]:
    """The optimizer of a model, and those that a ``train_step`` of its own may use: attributes of the model, also in
    lists and dicts, and those of the compiled models within it."""
    found = [getattr(model, "optimizer", None), *(each for value in vars(model).values() for each in _within(value))]
    if type(model).train_step is not keras.Model.train_step:
        found += [getattr(layer, "optimizer", None) for layer in model._flatten_layers(include_self=False)]
    return list({id(o): o for o in found if isinstance(o, BaseOptimizer)}.values())


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else (value,)


def variables(model: Any) -> list[Any]:
    """The variables of a model and of its optimizers, each once: weights, moving averages, seeds, slots, the step."""
    all_variables = [*model.variables, *(v for optimizer in optimizers(model) for v in optimizer.variables)]
    return list({id(variable): variable for variable in all_variables}.values())


def broadcast_count(model: Any) -> int:
    """How many of :func:`variables`, the first ones, every ``fit`` begins by broadcasting: not those of further
    optimizers."""
    further = [o for o in optimizers(model) if o is not getattr(model, "optimizer", None)]
    return len(variables(model)) - sum(len(optimizer.variables) for optimizer in further)


def layout(model_variables: Sequence[Any]) -> list[list[Any]]:
    """Path, dtype and shape of each variable, as JSON has them."""
    return [[v.path, str(v.dtype), [int(n) for n in v.shape]] for v in model_variables]


def check_layout(recorded: Sequence[Sequence[Any]], model_variables: Sequence[Any]) -> None:
    """Raise :class:`TrainingError` naming the first variable that differs from the recorded ones.

    Keras numbers names as models are made: those of one kind may have other numbers now, in the same order.
    """
    now, numbers = layout(model_variables), _Numbers()
    for i in range(max(len(recorded), len(now))):
        was, has = (entries[i] if i < len(entries) else None for entries in (recorded, now))
        if was is None or has is None or list(was[1:]) != has[1:] or not numbers.match(was[0], has[0]):
            raise TrainingError(
                f"the checkpoint is from a different model than the cell's: it has {_describe(was)} where the cell "
                f"has {_describe(has)}. Use another --checkpoint-dir, or omit --resume to train from the start."
            )


class _Numbers:
    """The numbers that names of variables have now, by those that they had, for each kind of name."""

    def __init__(self) -> None:
        self._now: dict[str, dict[int, int]] = {}

    def match(self, was: str, now: str) -> bool:
        """Whether two paths differ by numbers alone, and these are in the order in which they were."""
        olds, news = was.split("/"), now.split("/")
        return len(olds) == len(news) and all(map(self._match, olds, news))

    def _match(self, was: str, now: str) -> bool:
        (kind, old), (same, new) = _numbered(was), _numbered(now)
        known = self._now.setdefault(kind, {})
        fits = all(before == old or (before < old) == (after < new) for before, after in known.items())
        return kind == same and fits and known.setdefault(old, new) == new


def _numbered(name: str) -> tuple[str, int]:
    """``dense_2`` as its kind and its number; names of slots, which have others in them, without these."""
    kind, _, number = name.rpartition("_")
    kind, number = (kind, number) if number.isdigit() else (name, "0")
    return re.sub(r"_\d+(?=_)", "", kind), int(number)


def _describe(entry: Sequence[Any] | None) -> str:
    if entry is None:
        return "no variable"
    path, dtype, shape = entry
    return f"{path} ({dtype}, shape {tuple(shape)})"


def read(variable: Any) -> npt.NDArray[Any]:
    """A copy of a variable's value in one of NumPy's own dtypes; others, such as bfloat16, as bytes."""
    value = np.asarray((variable.value if hasattr(variable, "value") else variable).numpy())
    return value if value.dtype.kind in "biufc" else np.frombuffer(value.tobytes(), np.uint8)


def write(variable: Any, array: npt.NDArray[Any]) -> None:
    """Put back what :func:`read` gave."""
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    if array.dtype != dtype:
        array = np.frombuffer(array.tobytes(), dtype)
    variable.assign(array.reshape(tuple(variable.shape)))


# Generators of random numbers


def generator_states(arrays: Arrays) -> dict[str, Any]:
    """The states of the generators that a whole process shares: Python's, NumPy's, TensorFlow's and Keras's."""
    # Asking Keras for its generator would make one where there is none yet, with a seed drawn from Python's.
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return {
        **python_states(arrays),
        "tensorflow": freeze(_eager_generator().getstate(), "tensorflow", arrays),
        "keras": freeze(None if generator is None else read(generator.state), "keras", arrays),
    }


def python_states(arrays: Arrays) -> dict[str, Any]:
    """The states of the generators that Python code draws from, in a data set for one: Python's and NumPy's."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": freeze(random.getstate(), "python", arrays),
        "numpy": freeze((kind, np.asarray(keys), position, has_gauss, gauss), "numpy", arrays),
    }


def put_back_generator(kind: str, state: Any) -> None:
    """Put back the thawed state of one kind of :func:`generator_states`."""
    if kind == "python":
        random.setstate(state)
    elif kind == "numpy":
        np.random.set_state(state)
    elif kind == "tensorflow":
        _eager_generator().setstate(state)
    elif state is not None:
        before = random.getstate()
        write(global_seed_generator().state, state)
        random.setstate(before)


def generator_digests() -> dict[str, int]:
    """A number for each kind of generator that differs where its state does."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    states = generator_states(arrays)
    return {
        kind: zlib.crc32(repr(state).encode() + b"".join(a.tobytes() for k, a in arrays.items() if k.startswith(kind)))
        for kind, state in states.items()
    }


def _eager_generator() -> Any:
    """TensorFlow's generator of seeds for eager operations and datasets, which ``tf.random.set_seed`` seeds."""
    context = eager_context.context()
    if not hasattr(context, "_rng"):
        context._set_global_seed(None)
    return context._rng
