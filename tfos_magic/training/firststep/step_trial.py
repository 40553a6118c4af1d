"""Running a step of a model on a few rows, of which nothing stays: variables, seeds and metrics are as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfos_magic.training.collectives import Collectives
from tfos_magic.training.firststep.attributes import Attributes
from tfos_magic.training.firststep.kept import Kept, numbers
from tfos_magic.training.firststep.laws import StepValues
from tfos_magic.training.firststep.noise import RowlessNoise
from tfos_magic.training.firststep.words import of_tables, of_traces
from tfos_magic.training.keras_seam import trials
from tfos_magic.training.logs import metrics
from tfos_magic.training.logs.progress import flat
from tfos_magic.training.loop_state import TrainingState
from tfos_magic.training.refusals import note_python_state
from tfos_magic.training.step import Step

SAMPLED = 1 << 16
"""Elements of a large gradient that are compared."""

STRETCHES = (1024.0, 1 / 1024.0)
"""By how much gradients are longer in trials of whether a step treats them as a linear map would."""

_EPSILONS, _ROUNDINGS = {tf.bfloat16: 2.0**-8, tf.float16: 2.0**-11}, 4.0
"""How far apart numbers are in 16 bits, and how many such errors a gradient may have that comes in these."""

Batch = Any


class TrialStep(Step):
    """A step on ``rows`` of ``total`` rows. What all rows decide together is what the trial on all of them found."""

    def __init__(self, rows: int, total: int, decisions: list[tf.Tensor]) -> None:
        super().__init__(tf.constant(float(rows)), tf.zeros(2), None, Collectives())
        self.of_all = rows == total
        self.values: dict[Any, tf.Tensor] = {}
        self._all_rows = tf.constant(float(total))
        self._decisions = decisions
        self._next = 0

    def total(self) -> tf.Tensor:
        return self._all_rows

    def summed(self, value: tf.Tensor) -> tf.Tensor:
        return self.decided(lambda: value)

    def decided(self, compute: Callable[[], Any]) -> Any:
        """What is computed over all rows: found by the trial on all of them, known in those on parts."""
        if self.of_all:
            self._decisions.append(tf.nest.map_structure(lambda t: t if t is None else tf.stop_gradient(t), compute()))
        self._next += 1
        return self._decisions[self._next - 1]

    def counted(self, votes: tf.Tensor, apart: tf.Tensor | float = 0.0) -> None:
        """Nobody votes in a trial."""


class StepTrial:
    """Steps of ``model`` on some rows, by ``run``: ``kind`` is ``fit`` or ``evaluate``."""

    def __init__(self, session: TrainingState, model: Any, kind: str, stack: ExitStack) -> None:
        self._session, self.model, self._kind = session, model, kind
        self._step = model.train_step if kind == "fit" else model.test_step
        self.own_step = kind == "fit" and type(model).train_step is not keras.Model.train_step
        self.united_early = False
        self.changes_gradients = False
        self.stretch = self.scale = 1.0
        self._has_gradients = False
        self.changed_in_python: set[str] = set()
        self.writes_tables = False
        self._given: list[Any] = []
        self._noise = RowlessNoise(stack, self._trying)
        self._seen: dict[Any, Any] = {}
        self._decisions: list[tf.Tensor] = []
        self._rounding: dict[Any, float] = {}
        self._kept_by_all: dict[str, list[Any]] = {}
        self._now: TrialStep
        self._in_jacobian = trials.rows_in_turn(stack, self._trying)
        trials.install(stack, self._trying, self._gradient, self._heed, self._note_table)
        self.metrics = {id(metrics.raw(v)): m for m in metrics.leaf_metrics(model) for v in m.variables}
        self.state = Kept(model, session.python_calls)

    def run(self, batch: Batch, rows: int, total: int) -> StepValues:
        """Try a step on ``batch`` of ``rows`` rows of ``total``; that on all rows comes first."""
        if rows == total:
            self._decisions = []
        step = self._now = TrialStep(rows, total, self._decisions)
        self._seen, self._given, self._rounding = {}, [], {}
        self._noise.begin()
        before, attributes = self.state.values(), Attributes(self.model)
        self._session.step, self._session.trial = step, self
        logs: Any = {}
        try:
            with redirect_stdout(trials.Silence()):  # it says the same when it is taken
                logs = self._step(batch)
        finally:
            self._session.step = self._session.trial = None
            before[0].extend(self.state.taken_in())
            unchanged = self.state.unchanged(before)
            changed = self.state.changes(before, unchanged)
            self.state.restore(before, unchanged)
            numbers_kept = attributes.numbers()
            if names := attributes.changed_names():
                self.changed_in_python.update(names)
                self._session.changing_python.add(self.model)
            attributes.restore()
            self._compare(numbers_kept, rows == total)
            self.model._clear_losses()
        self._seen.update({name: numbers(value) for name, value in step.values.items()})
        if isinstance(logs, Mapping):
            by_kind = {"log": scalars_of(logs), "rows": by_row(logs, rows)}
            for kind, values in by_kind.items():
                self._seen.update({(kind, self._kind, n, id(self.model)): numbers(v) for n, v in values.items()})
        self._seen.update({name: change for name, (change, _) in changed.items()})
        return StepValues(rows, self._seen, self._rounding | {name: error for name, (_, error) in changed.items()})

    def _compare(self, numbers: dict[str, list[Any]], of_all: bool) -> None:
        """Tell of attributes in which a step keeps other numbers of a part of the rows than of all."""
        if of_all:
            self._kept_by_all = numbers
        for name, arrays in numbers.items():
            others = self._kept_by_all.get(name, [])
            if len(arrays) == len(others) and not all(map(_near, arrays, others)):
                note_python_state(name, self._session.reporter)

    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Note the gradients that a step gives to an optimizer, instead of a step of it."""
        for variable in variables:
            self.state.note_trained(variable)
        given_ids = {id(gradient) for gradient in self._given}
        self.changes_gradients |= any(g is not None and id(g) not in given_ids for g in gradients)
        self._note("applied" if self.united_early else "gradient", gradients, variables)

    def collected(self, names: Sequence[Any]) -> list[Any]:
        """Those ``names`` of statistics that are of what the model does not train."""
        trained = {id(metrics.raw(variable)) for variable in self.model.trainable_variables}
        return [name for name in names if name[1] not in trained]

    def remarks(self) -> list[str]:
        """What is to be told of the step, beside its laws."""
        traced = self.changed_in_python if not self.model.run_eagerly else ()
        return [*([of_traces(traced)] if traced else ()), *([of_tables()] if self.writes_tables else ())]

    def is_linear(self, batch: Batch, rows: int) -> bool:
        """Whether gradients of any length are treated alike on their way to the optimizer."""
        gradients_by_stretch = []
        self._has_gradients = False
        for self.stretch in (1.0, *STRETCHES):
            seen = self.run(batch, rows, rows).values
            gradients_by_stretch.append({name: v / self.stretch for name, v in seen.items() if name[0] == "gradient"})
        self.stretch = 1.0
        if not self._has_gradients:  # but those of single rows, by a jacobian
            return True
        return all(
            np.allclose(value, other[name], rtol=1e-4, atol=1e-5 * float(np.abs(value).max(initial=0.0)))
            for other in gradients_by_stretch[1:]
            for name, value in gradients_by_stretch[0].items()
        )

    def _note(self, kind: str, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        for gradient, variable in zip(gradients, variables, strict=False):
            name = (kind, id(variable))
            if gradient is not None:
                self._seen[name] = self._seen.get(name, 0.0) + _sample(gradient, variable)
                if gradient.dtype in _EPSILONS:
                    largest = float(np.abs(self._seen[name]).max(initial=0.0))
                    self._rounding[name] = _ROUNDINGS * _EPSILONS[gradient.dtype] * largest

    def _trying(self) -> bool:
        return self._session.trial is self

    def _note_table(self) -> None:
        self.writes_tables = True

    def _heed(self, variable: Any) -> None:
        if self._trying() and tf.executing_eagerly():
            self.state.heed(variable)

    def _gradient(self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        of_a_row = self._in_jacobian() or not tf.executing_eagerly()  # as in a graph that a Jacobian is made by
        of_weights = of_variables(sources) and not of_a_row
        if of_weights and self.scale != 1.0:
            args, kwargs = (), _scaled(self.scale, target, *args, **kwargs)
        gradients = original(tape, target, sources, *args, **kwargs)
        if not of_weights:
            return gradients
        self._has_gradients = True
        if self.stretch != 1.0:
            gradients = tf.nest.map_structure(lambda g: g if g is None else _times(g, self.stretch), gradients)
        if self.united_early:
            self._note("gradient", tf.nest.flatten(gradients), tf.nest.flatten(sources))
            gradients = self._now.decided(lambda: gradients)
        self._given += tf.nest.flatten(gradients)
        return gradients


def _near(array: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return array.shape == other.shape and np.allclose(array, other, rtol=1e-4)


def of_variables(sources: Any) -> bool:
    """Whether gradients by ``sources`` are those of a model's weights, and not of inputs."""
    return all(isinstance(leaf, (tf.Variable, keras.Variable)) for leaf in tf.nest.flatten(sources))


def by_row(logs: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Those of the logs of a step that have a number, or an array of numbers, for each of its rows."""
    values = {name: np.asarray(value) for name, value in flat(logs).items()}
    return {n: v for n, v in values.items() if v.dtype.kind in "fiu" and v.ndim and len(v) == rows}


def scalars_of(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers among the logs of a step."""
    values = {name: np.asarray(value) for name, value in flat(logs).items()}
    return {name: value for name, value in values.items() if not value.shape and value.dtype.name in metrics.NUMBERS}


class Discarded:
    """Takes the gradients of a step that is not to train."""

    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Forget them, but for what the optimizer keeps of each."""
        if not getattr(optimizer, "built", True):
            with keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(variables)


@contextmanager
def layers_in_float64(model: Any) -> Iterator[None]:
    """Let the layers of ``model`` compute in float64, from the variables that they have."""
    layers = list(model._flatten_layers())
    policies = [layer.dtype_policy for layer in layers]
    try:
        for layer, policy in zip(layers, policies, strict=True):
            layer.dtype_policy = keras.DTypePolicy("float64")
            layer.dtype_policy._variable_dtype = policy.variable_dtype  # as which layers read them in float64
        yield
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            layer.dtype_policy = policy


def _scaled(factor: float, target: Any, output_gradients: Any = None, **others: Any) -> dict[str, Any]:
    """The arguments with which a tape gives gradients that are so many times as large."""
    given = tf.nest.map_structure(tf.ones_like, target) if output_gradients is None else output_gradients
    return {"output_gradients": tf.nest.map_structure(lambda g: _times(g, factor), given), **others}


def _times(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _sample(gradient: Any, variable: Any) -> npt.NDArray[np.float64]:
    """Elements of a gradient, the same ones in every trial; of a sparse one a number for each row of the variable.

    It is no plain sum: that of a row is zero before a layer that takes the mean out, such as a LayerNormalization.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        flat = np.asarray(gradient).reshape(-1)
        return flat[:: max(1, flat.size // SAMPLED)].astype(np.float64)
    values = numbers(gradient.values)
    values = values.reshape(len(values), int(np.prod(values.shape[1:])))
    rows = values @ np.cos(np.arange(1.0, 1.0 + values.shape[1]))
    return np.bincount(np.asarray(gradient.indices), rows, int(variable.shape[0])).astype(np.float64)
