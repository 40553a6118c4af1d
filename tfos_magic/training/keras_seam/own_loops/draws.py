"""Batches that a cell draws by itself, from shares or from rows that all ranks have."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.autograph.operators import control_flow
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfos_magic.training.inputs import own_reads
from tfos_magic.training.inputs.marks import STAND_IN, called_with, inputs_of, is_fed, is_sharded
from tfos_magic.training.keras_seam.own_loops.tape_loop import OwnLoop
from tfos_magic.training.keras_seam.own_loops.together import Together, refuse_graph
from tfos_magic.training.keras_seam.seams import SCATTER, replace_item, replaced, wrap
from tfos_magic.training.logs.metrics import NUMBERS
from tfos_magic.training.rank_session import Session

_VALUES = {"assign": "value", "assign_add": "delta", "assign_sub": "delta", **dict.fromkeys(SCATTER, "sparse_delta")}
"""What a variable's methods that set it call the value that they are given."""


def install(stack: ExitStack, session: Session, own_loop: OwnLoop) -> None:
    """Watch batches being drawn, and what is assigned meanwhile, until ``stack`` closes."""
    together = Together(session)
    session.holds_shares = lambda: own_loop.iterators.gives_shares

    def begin(original: Any, dataset: Any) -> Any:
        if not session.in_cell:
            if is_fed(dataset):
                own_reads.refuse_in_thread()
            return original(dataset)
        within = session.loop is not None and session.loop.kind != "adapt"  # which merges what ranks see
        if within and is_fed(dataset) and _is_begun_by_cell():
            session.looks.looked = True  # in a callback, whose numbers are of this worker's rows
        shares = session.loop is None and is_sharded(dataset)
        if shares and is_fed(dataset):
            session.looks.begin(dataset)
            own_loop.source = dataset
        iterator = original(dataset)
        own_loop.iterators.begin(iterator, shares, counts=session.loop is None)
        together.begin(iterator, dataset)
        return iterator

    def draw(original: Any, iterator: Any) -> Any:
        if not session.in_cell:
            if own_loop.iterators.shares(iterator):
                own_reads.refuse_in_thread()
            return original(iterator)
        try:
            batch = together.draw(original, iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            session.draws_shares = False
            own_loop.iterators.end(iterator)
            if tf.executing_eagerly():
                own_loop.drawn_rows.end(int(own_loop.steps_taken.numpy()))
            raise
        if session.loop is None:
            own_loop.iterators.drawn(iterator)
            if (shares := own_loop.iterators.shares(iterator)) is not False:
                own_loop.drawn(batch, known=bool(shares) or own_loop.iterators.gives_shares)
        return batch

    def loop(original: Any, source: Any, extra_test: Any, body: Any, *rest: Any) -> Any:
        is_dataset = isinstance(source, tf.data.Dataset)
        if is_dataset:
            refuse_graph(source)
        shares = is_sharded(source) if is_dataset else own_loop.iterators.shares(source)
        hidden = type(source).__name__ == STAND_IN and not inputs_of(source)
        if session.loop is not None or (shares is False and not hidden):
            return original(source, extra_test, body, *rest)
        if is_dataset:
            own_reads.refuse_cut(source)
            own_loop.source = source if shares else None

        def counted(batch: Any) -> None:
            given = bool(shares) or (shares is None and own_loop.iterators.gives_shares)
            own_loop.drawn(batch, known=given)
            with replaced(own_loop.iterators, "in_graph", given):
                body(batch)

        try:
            with session.looks.inside():  # TensorFlow makes a reduction of such a loop
                return original(source, extra_test, counted, *rest)
        finally:
            session.draws_shares = False

    def assign(method: str, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        if session.apart:
            value, *rest = args or [kwargs.pop(_VALUES[method])]
            return own_loop.assign_by_replica(method, lambda v, new: original(v, new, *rest, **kwargs), variable, value)
        own = session.loop is None and session.draws_shares and not session.applying
        if own and (variable.trainable or _is_of_layer(variable)):
            session.assigned[id(variable)] = variable
        return original(variable, *args, **kwargs)

    def call(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, tf.data.Dataset)]
        if not given:
            return original(function, *args, **kwargs)
        with called_with(given):
            return original(function, *args, **kwargs)

    wrap(stack, Function, "__call__", call)
    for name in _VALUES:
        wrap(stack, ResourceVariable, name, partial(assign, name))
    wrap(stack, tf.data.Dataset, "__iter__", begin)
    wrap(stack, OwnedIterator, "_next_internal", draw)
    loops = control_flow.for_loop_registry._registry
    for kind in (tf.data.Dataset, OwnedIterator):
        original = loops[kind]
        replace_item(stack, loops, kind, lambda *a, _original=original: loop(_original, *a))


def _is_of_layer(variable: Any) -> bool:
    """Whether a layer that is being called collects something in ``variable``, and does not draw by it."""
    is_called = global_state.get_global_attribute("current_call_ctx") is not None
    return is_called and (variable.dtype.name in NUMBERS or variable.dtype.is_bool)


def _is_begun_by_cell() -> bool:
    """Whether the call under way comes from the user's code, and neither from Keras nor from ours."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("tfos_magic.", "tensorflow.")):
        frame = frame.f_back
    return frame is not None and not str(frame.f_globals.get("__name__", "")).startswith(("keras.", "tf_keras."))
