"""Models that are the same on every rank: built alike, rank 0's values taken over."""

from __future__ import annotations

import itertools
import random
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, redirect_stdout, suppress
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import compute_output_spec

from tfos_magic.errors import TrainingError
from tfos_magic.training.agreement import REMEDY
from tfos_magic.training.firststep.attributes import Attributes
from tfos_magic.training.inputs.digests import of_arrays
from tfos_magic.training.keras_seam.data.python_calls import PythonCalls
from tfos_magic.training.keras_seam.trials import Silence, watch_building
from tfos_magic.training.logs.metrics import NUMBERS
from tfos_magic.training.loop import Loop
from tfos_magic.training.loop_state import TrainingState


class Replicas:
    """The models of a run on this rank, and what of them the ranks have in common by now."""

    def __init__(self, session: TrainingState, building: Callable[[], AbstractContextManager[None]]) -> None:
        self._session, self._building = session, building
        self._synced: weakref.WeakSet[Any] = weakref.WeakSet()
        self._called: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def may_wait(self, loop: Loop) -> bool:
        """Whether a ``fit`` that begins may leave it to its first step to build the model."""
        session = self._session
        goes_on = loop.fit is not None and loop.fit.position is not None
        together = session.exact or not session.many
        return together and not goes_on and not _is_built(loop.model)

    def prepare(self, loop: Loop) -> None:
        """Build the model of a loop, unless that was done, for the data that it has."""
        build, loop.build = loop.build, None
        if build is not None:
            build()

    def build(self, model: Any, element_spec: Any) -> None:
        """Build what Keras would build in the first step, so that rank 0's values can be taken over before it."""
        spec = tf.nest.map_structure(_buildable, element_spec)
        attributes, generators = Attributes(model), _Generators(self._session.python_calls)
        # A step calls what it likes, and how it likes; and asks an initializer once, which may have a state of its own.
        trace = partial(self._trace, attributes=attributes)
        for build in (self._call, trace) if _is_built(model) else (trace, self._call):
            try:
                with self._session.drawing_alike(), ExitStack() as stack:
                    watch_building(stack, partial(generators.while_building, attributes.while_building))
                    build(model, spec)
                if build == self._call and attributes.has_made() and not self._session.loops[-1].runs_eagerly:
                    self._called[model] = spec
                return
            except TrainingError:
                raise
            except Exception:  # whatever a user's call() may raise: training itself will raise it again, if it is real
                continue
            finally:
                attributes.restore(partial(self._trace, model, spec))
                generators.put_back()
        # What runs eagerly alone, as a metric that takes NumPy's numbers, is built by the trial of the first step.
        self._session.loops[-1].broadcast_late = not (self._session.loops[-1].runs_eagerly and _is_built(model))

    def trace_first(self, model: Any) -> None:
        """Trace a step as TensorFlow does before the one that stays, where Keras makes variables in it: Python code of
        the user's may count these."""
        spec = self._called.pop(model, None)
        if spec is not None and model in self._session.changing_python:
            with self._session.drawing_alike(), suppress(Exception):  # training will raise it again
                self._trace(model, spec)

    def _call(self, model: Any, spec: Any) -> None:
        """Call a model for the shapes alone, as its first step will.

        A ``Sequential`` that is built in that call keeps, of the value of ``training``, what its layers take it for.
        """
        if not _is_built(model):
            inputs = keras.utils.unpack_x_y_sample_weight(spec)[0]
            training = {"training": self._session.loops[-1].training} if model._call_has_training_arg else {}
            compute_output_spec(model, tf.nest.map_structure(_symbol, inputs), **training)
        model._symbolic_build(data_batch=spec)

    def _trace(self, model: Any, spec: Any, attributes: Attributes | None = None) -> None:
        """Trace a step that never runs, of a model that Keras cannot build by itself.

        Where steps are graphs, TensorFlow traces one that makes variables, and then the one without them. So it does
        here: the first is that of Keras, and of ``attributes`` what it changes stays.
        """
        loop = self._session.loops[-1]
        step = model.train_step if loop.training else model.test_step
        traces = itertools.count()

        def take(batch: Any) -> None:
            if number := next(traces):
                if loop.runs_eagerly:  # which takes it once
                    return
                if number == 1 and attributes is not None:
                    attributes.renew()
            step(batch)

        with self._building(), redirect_stdout(Silence()):
            tf.function(take, autograph=False).get_concrete_function(spec)
        model._clear_losses()

    def take_over(self, model: Any, loop: Loop) -> None:
        """Give every rank rank 0's variables, and each random layer numbers of its own."""
        if not self._session.many:
            return
        if loop.kind == "evaluate" and model in self._synced:
            if any(outer.kind == "fit" and outer.model is model for outer in self._session.loops):
                self._session.strategy.settle(model)
            return
        if not loop.broadcast_late:
            self._broadcast(model)

    def unify(self, model: Any) -> None:
        """After training: what layers gathered on the side is rank 0's everywhere, should a layer gather its own."""
        self._session.strategy.end(model)
        self.broadcast(model.non_trainable_weights)

    def _broadcast(self, model: Any) -> None:
        self.refuse_other_values(model.trainable_variables)
        state = getattr(getattr(model, "optimizer", None), "variables", [])  # tf_keras has methods of that name
        self.broadcast([*model.variables, *(state() if callable(state) else state)])
        self._synced.add(model)

    def refuse_other_values(self, variables: Sequence[Any]) -> None:
        """Before rank 0's values are taken: refuse those that a number made of a worker's own rows has made others."""
        session = self._session
        if not session.strategy.lockstep or not session.collectives.gather([session.looks.looked]).any():
            return
        digests = session.collectives.gather([of_arrays([np.asarray(read(v)) for v in variables])])
        if (digests != digests[0]).any() and not session.context.calls.rank:
            raise TrainingError(f"the workers start with different weights. {REMEDY}")

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Give every rank rank 0's values of Keras's or TensorFlow's ``variables``, those that hold numbers."""
        numeric_variables = {id(v): v for v in variables if tf.as_dtype(v.dtype).name in NUMBERS}.values()
        for variable, value in zip(
            numeric_variables, self._session.collectives.broadcast(list(map(read, numeric_variables))), strict=True
        ):
            variable.assign(value)

    def knows(self, model: Any) -> bool:
        """Whether all ranks have the weights of ``model`` from rank 0."""
        return model in self._synced

    def take_over_late(self, model: Any, loop: Loop) -> None:
        """Take over rank 0's values after the first step of a model that could not be built before."""
        loop.broadcast_late = False
        self._broadcast(model)
        self._session.reporter.notice(
            f"Model {model.name!r} was built by its first step, so this one step was not checked: its loss was "
            "assumed to be a mean over rows. Call the model once, or give it an Input, to have it checked too."
        )


class _Generators:
    """What Python and NumPy draw from, put back after a step that was traced and not taken, but for one from which
    layers have drawn as they were built, and where an input pipeline may have drawn meanwhile."""

    def __init__(self, python_calls: PythonCalls) -> None:
        self._python_calls, self._mark = python_calls, python_calls.mark()
        self._kinds: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
            (random.getstate, random.setstate),
            (partial(np.random.get_state, legacy=False), np.random.set_state),
        ]
        self._before = self._states()

    def _states(self) -> list[Any]:
        return [read() for read, _ in self._kinds]

    def while_building(self, building: Callable[..., Any], *args: Any) -> Any:
        """Stand around Keras's ``building`` of a layer."""
        before = self._states()
        try:
            return building(*args)
        finally:
            kept = [_is_same(old, new) for old, new in zip(before, self._states(), strict=True)]
            self._kinds = [kind for kind, same in zip(self._kinds, kept, strict=True) if same]
            self._before = [state for state, same in zip(self._before, kept, strict=True) if same]

    def put_back(self) -> None:
        if self._python_calls.any_since(self._mark):
            return
        for (_, write), state in zip(self._kinds, self._before, strict=True):
            write(state)


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, tuple):
        return bool(old == new)
    return bool(old["state"]["pos"] == new["state"]["pos"] and (old["state"]["key"] == new["state"]["key"]).all())


def _buildable(leaf: Any) -> Any:
    """What Keras can build from: not a batch that is known to be empty on this rank, for it may fail where others do
    not."""
    if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank and leaf.shape[0] == 0:
        return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)
    return leaf if hasattr(leaf, "dtype") else None


def _is_built(model: Any) -> bool:
    return all(layer.built for layer in model._flatten_layers())


def _symbol(leaf: Any) -> Any:
    return None if leaf is None else keras.KerasTensor(leaf.shape, leaf.dtype.name)


def read(variable: Any) -> tf.Tensor:
    """The value of a variable, which may be Keras's or TensorFlow's."""
    return variable.read_value() if isinstance(variable, tf.Variable) else variable.value
