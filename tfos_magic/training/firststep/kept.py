"""What a step may change of a model and of the process, kept to be put back."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, SeedGenerator
from tensorflow.python.eager import context as eager_context

from tfos_magic.training.checkpointing.snapshot import optimizers
from tfos_magic.training.keras_seam.data.python_calls import PythonCalls
from tfos_magic.training.logs import metrics

_LATER = (1.0, 1000.0)
"""By how much counters, and numbers that a callback may set, are more in trials of what a step does later on."""

_FEW = 64
"""Elements of a variable that may say what a step does, rather than be what it computes with."""

_ROUNDING = 4 * float(np.finfo(np.float32).eps)


class Kept:
    """What a step may change of a model and of the process, to be put back."""

    def __init__(self, model: Any, python_calls: PythonCalls | None = None) -> None:
        self._model, self._python_calls = model, python_calls
        scalars = [v for o in optimizers(model) for v in o.variables if len(v.shape) == 0]
        layers = [
            leaf for layer in model._flatten_layers() for value in vars(layer).values() for leaf in _leaves(value)
        ]
        seeds = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        all_variables = [
            *model.variables,
            *model.metrics_variables,
            *scalars,
            *layers,
            *([seeds.state] if seeds else []),
        ]
        self.variables = list({id(raw): raw for raw in map(metrics.raw, all_variables)}.values())
        # Weights among them: a step may take them further by itself, without an optimizer.
        statistics = {id(metrics.raw(v)) for v in [*model.weights, *layers]}
        apart = {id(metrics.raw(v)) for v in [*model.metrics_variables, *_seeds(model)]}
        self._statistics = (statistics | {id(metrics.raw(v)) for v in scalars}) - apart
        self._metrics = {id(metrics.raw(v)) for v in model.metrics_variables}
        self._apart = apart | {id(metrics.raw(v)) for v in model.trainable_variables}
        self._known = {id(variable) for variable in self.variables}
        self._newly_used: list[tuple[tf.Variable, tf.Tensor]] = []
        self._scalars: dict[int, tf.Variable] = {}
        self._modes: dict[int, tf.Variable] = {}

    def heed(self, variable: tf.Variable) -> None:
        """A step uses ``variable``, which may be one that the model does not know of, such as a weight of its loss."""
        key = id(variable)
        if key not in self._known:
            self._known.add(key)
            self._newly_used.append((variable, variable.read_value()))
        if key in self._apart:
            return
        number = len(variable.shape) == 0
        if number:
            self._scalars[key] = variable
        if not (number and variable.dtype.is_floating) and (variable.shape.num_elements() or 0) <= _FEW:
            self._modes[key] = variable

    def note_trained(self, variable: Any) -> None:
        """An optimizer is given the gradient of ``variable``: nobody else is to change it."""
        key = id(metrics.raw(variable))
        self._apart.add(key)
        self._scalars.pop(key, None)
        self._modes.pop(key, None)

    def settings(self) -> dict[int, tuple[tf.Variable, Any]]:
        """Variables that a step reads and does not change, such as a mode, with what they hold; not single floats,
        of which other values are tried."""
        return {key: (variable, variable.numpy()) for key, variable in self._modes.items()}

    def taken_in(self) -> list[tf.Tensor]:
        """Count variables that a step has used for the first time among its own; gives what they were before it."""
        newly_used, self._newly_used = self._newly_used, []
        self.variables += [variable for variable, _ in newly_used]
        self._statistics |= {id(variable) for variable, _ in newly_used}
        return [value for _, value in newly_used]

    def ahead(self, own_step: bool) -> tuple[float, ...]:
        """The trials of later steps: of all that uses numbers which may change, and of a ``train_step`` of its own."""
        kinds = {variable.dtype.is_floating for variable in self._scalars.values()}
        return _LATER if True in kinds else _LATER[1:] if own_step or kinds else ()

    def values(self) -> tuple[list[tf.Tensor], Any]:
        """All of it, as it is now."""
        mark = self._python_calls.mark() if self._python_calls else None
        generator = eager_context.context()._rng
        states = (random.getstate(), np.random.get_state(), generator.getstate() if generator is not None else None)
        return [variable.read_value() for variable in self.variables], (mark, states)

    def unchanged(self, before: tuple[list[tf.Tensor], Any]) -> set[int]:
        """The variables that hold what they held ``before``, as most do, and large ones among them, by their ids."""
        return {id(v) for v, old in zip(self.variables, before[0], strict=True) if _is_same(v.read_value(), old)}

    def restore(self, values: tuple[list[tf.Tensor], Any], unchanged: Set[int] = frozenset()) -> None:
        """Put back what :meth:`values` gave. Variables that were taken in since are what they were found to be.

        Generators are left as they are where an input pipeline may have drawn from them meanwhile.
        """
        tensors, (mark, (of_python, of_numpy, of_tensorflow)) = values
        for variable, value in zip(self.variables, tensors, strict=False):
            if id(variable) not in unchanged:
                variable.assign(value)
        if self._python_calls and self._python_calls.any_since(mark):
            return
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if of_tensorflow is not None:
            eager_context.context()._rng.setstate(of_tensorflow)

    def changes(
        self, before: tuple[list[tf.Tensor], Any], unchanged: Set[int]
    ) -> dict[Any, tuple[npt.NDArray[np.float64], float]]:
        """By how much a step has changed the model's statistics and metrics, by kind and variable, and how exactly."""
        changed = {}
        for variable, old in zip(self.variables, before[0], strict=True):
            same = id(variable) in unchanged
            if not same:
                self._modes.pop(id(variable), None)
            kind = "statistic" if id(variable) in self._statistics else "state" if id(variable) in self._metrics else ""
            if not kind or not (variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_bool):
                continue
            if same:
                changed[kind, id(variable)] = np.zeros(1), 0.0
            else:
                was = numbers(old)
                rounding = _ROUNDING * float(np.abs(was).max(initial=0.0))
                changed[kind, id(variable)] = numbers(variable) - was, rounding
        return changed

    @contextmanager
    def perturbed(self, seed: int) -> Iterator[None]:
        """Move weights whose elements are all alike: a gate that begins at zero would hide what is behind it."""
        moved = {id(metrics.raw(v)) for v in self._model.weights} - {id(metrics.raw(v)) for v in _seeds(self._model)}
        generator = np.random.default_rng(seed)
        before = self.values()
        for variable in self.variables:
            if id(variable) in moved and variable.dtype.is_floating:
                values = variable.numpy()
                if values.size and values.min() == values.max():
                    variable.assign(
                        tf.cast(values.astype(np.float64) + generator.uniform(0.01, 0.05, values.shape), variable.dtype)
                    )
        try:
            yield
        finally:
            self.restore(before)

    @contextmanager
    def other_metrics(self) -> Iterator[None]:
        """Let metrics hold what they would of other rows."""
        before = self.values()
        for variable in self.variables:
            if id(variable) in self._metrics and variable.dtype.is_floating:
                variable.assign(2 * variable.read_value() + 1)
        try:
            yield
        finally:
            self.restore(before)

    @contextmanager
    def later(self, ahead: float) -> Iterator[None]:
        """Let counters, of the model and its optimizers, and other numbers that the step uses be ``ahead`` more."""
        before = self.values()
        for variable in self.variables:
            counts = id(variable) in self._statistics and variable.dtype.is_integer and len(variable.shape) == 0
            if counts or (id(variable) in self._scalars and variable.dtype in metrics.NUMBERS):
                variable.assign_add(tf.cast(ahead, variable.dtype))
        try:
            yield
        finally:
            self.restore(before)


@contextmanager
def drawing_apart() -> Iterator[None]:
    """Let Keras draw, where no seed is given, from a generator that is forgotten, like the process's one at first.

    Input pipelines go on drawing from that one meanwhile, on threads of their own: it is not to be put back.
    """
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    names = global_state.get_global_attribute("object_name_uids", defaultdict(int), True)
    names_before = dict(names)
    if generator is not None:
        apart = SeedGenerator(seed=0, name=generator.name)
        apart.state.assign(generator.state)
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, apart)
    try:
        yield
    finally:
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
        names.clear()
        names.update(names_before)


def _seeds(model: Any) -> list[Any]:
    return [g.state for layer in model._flatten_layers() for g in getattr(layer, "_seed_generators", None) or []]


def _leaves(value: Any) -> list[tf.Variable]:
    """TensorFlow's variables in an attribute of a layer, which Keras does not know of."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    leaves = [leaf.state if isinstance(leaf, tf.random.Generator) else leaf for leaf in held]
    return [leaf for leaf in leaves if isinstance(leaf, tf.Variable)]


def _is_same(tensor: tf.Tensor, old: tf.Tensor) -> bool:
    """Whether they hold the same; a variable that nothing was assigned to gives the very memory it gave before."""
    address = _address(old)
    return (address is not None and address == _address(tensor)) or bool(tf.reduce_all(tf.equal(tensor, old)))


def _address(tensor: tf.Tensor) -> int | None:
    try:
        address: int = np.frombuffer(tensor, np.uint8).__array_interface__["data"][0]
    except (TypeError, ValueError, BufferError):  # it is elsewhere, or of objects
        return None
    return address


def numbers(value: Any) -> npt.NDArray[np.float64]:
    """A tensor of numbers of any type in float64."""
    return np.asarray(tf.cast(value, tf.float64))
