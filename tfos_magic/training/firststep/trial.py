"""Running a step of a model on a few rows, of which nothing stays: variables, seeds and metrics are as they were."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfos_magic.training import metrics
from tfos_magic.training.checkpoints.snapshot import optimizers
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.firststep.attributes import Attributes
from tfos_magic.training.firststep.laws import Seen
from tfos_magic.training.firststep.noise import RowlessNoise
from tfos_magic.training.patching import replace, wrap
from tfos_magic.training.step import Step

if TYPE_CHECKING:
    from tfos_magic.training.session import Session

SAMPLED = 1 << 16
"""Elements of a large gradient that are compared."""

STRETCHES = (1024.0, 1 / 1024.0)
"""By how much gradients are longer in trials of whether a step treats them as a linear map would."""

_LATER = (1.0, 1000.0)
"""By how much counters, and numbers that a callback may set, are more in trials of what a step does later on."""

_FEW = 64
"""Elements of a variable that may say what a step does, rather than be what it computes with."""

_ROUNDING = 4 * float(np.finfo(np.float32).eps)

Batch = Any


class TrialStep(Step):
    """A step on ``rows`` of ``total`` rows. What all rows decide together is what the trial on all of them found."""

    def __init__(self, rows: int, total: int, found: list[tf.Tensor]) -> None:
        super().__init__(tf.constant(float(rows)), tf.zeros(2), None, Collectives())
        self.of_all = rows == total
        self.values: dict[Any, tf.Tensor] = {}
        self._all_rows = tf.constant(float(total))
        self._found = found
        self._next = 0

    def total(self) -> tf.Tensor:
        return self._all_rows

    def summed(self, value: tf.Tensor) -> tf.Tensor:
        return self.decided(lambda: value)

    def decided(self, compute: Callable[[], Any]) -> Any:
        """What is computed over all rows: found by the trial on all of them, known in those on parts."""
        if self.of_all:
            self._found.append(tf.nest.map_structure(lambda t: t if t is None else tf.stop_gradient(t), compute()))
        self._next += 1
        return self._found[self._next - 1]

    def counted(self, votes: tf.Tensor, apart: tf.Tensor | float = 0.0) -> None:
        """Nobody votes in a trial."""


class Trial:
    """Steps of ``model`` on some rows, by ``run``: ``kind`` is ``fit`` or ``evaluate``."""

    def __init__(self, session: Session, model: Any, kind: str, stack: ExitStack) -> None:
        self._session, self.model = session, model
        self._step = model.train_step if kind == "fit" else model.test_step
        self.own_step = kind == "fit" and type(model).train_step is not keras.Model.train_step
        self.united_early = False
        self.changes_gradients = False
        self.stretch = 1.0
        self._given: list[Any] = []
        self._noise = RowlessNoise(stack)
        self._seen: dict[Any, Any] = {}
        self._found: list[tf.Tensor] = []
        self._now: TrialStep
        wrap(stack, tf.GradientTape, "gradient", self._gradient)
        # Whatever reads or assigns a variable asks for this, TensorFlow's own C++ too.
        replace(stack, ResourceVariable, "_handle", property(self._handle_of, _set_handle))
        self.metrics = {id(metrics.raw(v)): m for m in metrics.leaf_metrics(model) for v in m.variables}
        self.state = Kept(model)

    def run(self, batch: Batch, rows: int, total: int) -> Seen:
        """Try a step on ``batch`` of ``rows`` rows of ``total``; that on all rows comes first."""
        if rows == total:
            self._found = []
        step = self._now = TrialStep(rows, total, self._found)
        self._seen, self._given = {}, []
        self._noise.begin()
        before, attributes = self.state.values(), Attributes(self.model)
        self._session.step, self._session.trial = step, self
        try:
            self._step(batch)
        finally:
            self._session.step = self._session.trial = None
            before[0].extend(self.state.taken_in())
            changed = self.state.changes(before)
            self.state.restore(before)
            attributes.restore()
            self.model._clear_losses()
        self._seen.update({name: _numbers(value) for name, value in step.values.items()})
        self._seen.update({name: change for name, (change, _) in changed.items()})
        return Seen(rows, self._seen, {name: rounding for name, (_, rounding) in changed.items()})

    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Note the gradients that a step gives to an optimizer, instead of a step of it."""
        own = {id(gradient) for gradient in self._given}
        self.changes_gradients |= any(g is not None and id(g) not in own for g in gradients)
        self._note("applied" if self.united_early else "gradient", gradients, variables)

    def is_linear(self, batch: Batch, rows: int) -> bool:
        """Whether gradients of any length are treated alike on their way to the optimizer."""
        found = []
        for self.stretch in (1.0, *STRETCHES):
            seen = self.run(batch, rows, rows).values
            found.append({name: v / self.stretch for name, v in seen.items() if name[0] == "gradient"})
        self.stretch = 1.0
        return all(
            np.allclose(value, other[name], rtol=1e-4, atol=1e-5 * float(np.abs(value).max(initial=0.0)))
            for other in found[1:]
            for name, value in found[0].items()
        )

    def _note(self, kind: str, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        for gradient, variable in zip(gradients, variables, strict=False):
            name = (kind, id(variable))
            if gradient is not None:
                self._seen[name] = self._seen.get(name, 0.0) + _sample(gradient, variable)

    def _handle_of(self, variable: Any) -> Any:
        if self._session.trial is self and tf.executing_eagerly():
            self.state.heed(variable)
        return vars(variable)["_handle"]

    def _gradient(self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(tape, target, sources, *args, **kwargs)
        if not of_variables(sources):
            return found
        if self.stretch != 1.0:
            found = tf.nest.map_structure(lambda g: g if g is None else _times(g, self.stretch), found)
        if self.united_early:
            self._note("gradient", tf.nest.flatten(found), tf.nest.flatten(sources))
            found = self._now.decided(lambda: found)
        self._given += tf.nest.flatten(found)
        return found


def _set_handle(variable: Any, handle: Any) -> None:
    vars(variable)["_handle"] = handle


def of_variables(sources: Any) -> bool:
    """Whether gradients by ``sources`` are those of a model's weights, and not of inputs."""
    return all(isinstance(leaf, (tf.Variable, keras.Variable)) for leaf in tf.nest.flatten(sources))


class Discarded:
    """Takes the gradients of a step that is not to train."""

    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Forget them."""


class Kept:
    """What a step may change of a model and of the process, to be put back."""

    def __init__(self, model: Any) -> None:
        self._model = model
        scalars = [v for o in optimizers(model) for v in o.variables if len(v.shape) == 0]
        layers = [
            leaf for layer in model._flatten_layers() for value in vars(layer).values() for leaf in _leaves(value)
        ]
        seeds = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        own = [*model.variables, *model.metrics_variables, *scalars, *layers, *([seeds.state] if seeds else [])]
        self.variables = list({id(raw): raw for raw in map(metrics.raw, own)}.values())
        # Weights among them: a step may take them further by itself, without an optimizer.
        statistics = {id(metrics.raw(v)) for v in [*model.weights, *layers]}
        apart = {id(metrics.raw(v)) for v in [*model.metrics_variables, *_seeds(model)]}
        self._statistics = (statistics | {id(metrics.raw(v)) for v in scalars}) - apart
        self._metrics = {id(metrics.raw(v)) for v in model.metrics_variables}
        self._apart = apart | {id(metrics.raw(v)) for v in model.trainable_variables}
        self._known = {id(variable) for variable in self.variables}
        self._found: list[tuple[tf.Variable, tf.Tensor]] = []
        self._scalars: dict[int, tf.Variable] = {}
        self._modes: dict[int, tf.Variable] = {}

    def heed(self, variable: tf.Variable) -> None:
        """A step uses ``variable``, which may be one that the model does not know of, such as a weight of its loss."""
        key = id(variable)
        if key not in self._known:
            self._known.add(key)
            self._found.append((variable, variable.read_value()))
        if key in self._apart or variable.trainable:
            return
        number = len(variable.shape) == 0
        if number:
            self._scalars[key] = variable
        if not (number and variable.dtype.is_floating) and (variable.shape.num_elements() or 0) <= _FEW:
            self._modes[key] = variable

    def settings(self) -> dict[int, tuple[tf.Variable, Any]]:
        """Variables that a step reads and does not change, such as a mode, with what they hold; not single floats,
        of which other values are tried."""
        return {key: (variable, variable.numpy()) for key, variable in self._modes.items()}

    def taken_in(self) -> list[tf.Tensor]:
        """Count variables that a step has used for the first time among its own; gives what they were before it."""
        found, self._found = self._found, []
        self.variables += [variable for variable, _ in found]
        self._statistics |= {id(variable) for variable, _ in found}
        return [value for _, value in found]

    def ahead(self, own_step: bool) -> tuple[float, ...]:
        """The trials of later steps: of all that uses numbers which may change, and of a ``train_step`` of its own."""
        kinds = {variable.dtype.is_floating for variable in self._scalars.values()}
        return _LATER if True in kinds else _LATER[1:] if own_step or kinds else ()

    def values(self) -> tuple[list[tf.Tensor], Any]:
        """All of it, as it is now."""
        generator = eager_context.context()._rng
        states = (random.getstate(), np.random.get_state(), generator.getstate() if generator is not None else None)
        return [variable.read_value() for variable in self.variables], states

    def restore(self, values: tuple[list[tf.Tensor], Any]) -> None:
        """Put back what :meth:`values` gave. Variables that were taken in since are what they were found to be."""
        tensors, (of_python, of_numpy, of_tensorflow) = values
        for variable, value in zip(self.variables, tensors, strict=False):
            variable.assign(value)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if of_tensorflow is not None:
            eager_context.context()._rng.setstate(of_tensorflow)

    def changes(self, before: tuple[list[tf.Tensor], Any]) -> dict[Any, tuple[npt.NDArray[np.float64], float]]:
        """By how much a step has changed the model's statistics and metrics, by kind and variable, and how exactly."""
        changed = {}
        for variable, old in zip(self.variables, before[0], strict=True):
            if id(variable) in self._modes and not bool(tf.reduce_all(tf.equal(variable, old))):
                del self._modes[id(variable)]
            kind = "statistic" if id(variable) in self._statistics else "state" if id(variable) in self._metrics else ""
            if not kind or not (variable.dtype.is_floating or variable.dtype.is_integer):
                continue
            if bool(tf.reduce_all(tf.equal(variable, old))):  # as most are, and large ones among them
                changed[kind, id(variable)] = np.zeros(1), 0.0
            else:
                was = _numbers(old)
                rounding = _ROUNDING * float(np.abs(was).max(initial=0.0))
                changed[kind, id(variable)] = _numbers(variable) - was, rounding
        return changed

    @contextmanager
    def perturbed(self, seed: int) -> Iterator[None]:
        """Move weights whose elements are all alike: a gate that begins at zero would hide what is behind it."""
        moved = {id(metrics.raw(v)) for v in self._model.weights} - {id(metrics.raw(v)) for v in _seeds(self._model)}
        generator = np.random.default_rng(seed)
        before = self.values()
        for variable in self.variables:
            if id(variable) in moved and variable.dtype.is_floating:
                values = _numbers(variable)
                if values.size and values.min() == values.max():
                    variable.assign(tf.cast(values + generator.uniform(0.01, 0.05, values.shape), variable.dtype))
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
def layers_in_float64(model: Any) -> Iterator[None]:
    """Let the layers of ``model`` compute in float64, from the variables that they have."""
    layers = list(model._flatten_layers())
    policies = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            layer.dtype_policy = keras.DTypePolicy("float64")
        yield
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            layer.dtype_policy = policy


def _seeds(model: Any) -> list[Any]:
    return [g.state for layer in model._flatten_layers() for g in getattr(layer, "_seed_generators", None) or []]


def _leaves(value: Any) -> list[tf.Variable]:
    """TensorFlow's variables in an attribute of a layer, which Keras does not know of."""
    held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    found = [leaf.state if isinstance(leaf, tf.random.Generator) else leaf for leaf in held]
    return [leaf for leaf in found if isinstance(leaf, tf.Variable)]


def _times(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _sample(gradient: Any, variable: Any) -> npt.NDArray[np.float64]:
    """Elements of a gradient, the same ones in every trial; of a sparse one the sums by rows of the variable."""
    if not isinstance(gradient, tf.IndexedSlices):
        flat = tf.reshape(gradient, [-1])
        return _numbers(flat[:: max(1, int(flat.shape[0] or 0) // SAMPLED)])
    rows = np.asarray(tf.reduce_sum(tf.reshape(gradient.values, [tf.shape(gradient.values)[0], -1]), 1), np.float64)
    return np.bincount(np.asarray(gradient.indices), rows, int(variable.shape[0])).astype(np.float64)


def _numbers(value: Any) -> npt.NDArray[np.float64]:
    return np.asarray(tf.cast(value, tf.float64))
