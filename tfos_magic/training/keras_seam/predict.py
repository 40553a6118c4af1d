"""``predict`` with several ranks: each computes its part, and every rank gets the predictions of all rows, in order.

Arrays, which all ranks hold, are parted at whole batches, so that a model sees the batches that one process would give
it. Of a fed DataFrame each rank predicts its share, and the rows come back in the order of the DataFrame.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import tree
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from tfos_magic.errors import TrainingError
from tfos_magic.training.firststep.attributes import Attributes
from tfos_magic.training.firststep.maps import check_predicted
from tfos_magic.training.firststep.python_objects import names_in_code
from tfos_magic.training.inputs import own_reads
from tfos_magic.training.inputs.digests import of_arrays
from tfos_magic.training.inputs.marks import is_by_rank, is_sharded, rows_by_step
from tfos_magic.training.inputs.sharding import rank_slice
from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.logs.metrics import raw
from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session
from tfos_magic.training.refusals import note_draws, note_python_state
from tfos_magic.training.step import rows_of, with_stand_in

Array = np.ndarray[Any, Any]
Predict = Callable[[Any], Any]
"""Keras's ``predict`` of this call, for the input that it is given."""

BATCHES_PER_RANK = 2
_KERAS_BATCH = 32
_SAMPLED = 64
_TRAVEL = ("float16", "float32", "float64", "int32", "int64")


def install(stack: ExitStack, session: Session) -> None:
    """Note the rows of each share that ``predict`` draws, and let it compute on a stand-in where there are none."""

    def draw(original: Any, iterator: Any) -> Any:
        batch, loop = original(iterator), session.loop
        if loop is not None and _is_stopped(session):
            loop.model.stop_predicting = True  # what is missing then is never given: the run ends
        if loop is None or loop.shares is None or (rows := rows_of(batch)) is None:
            return batch
        loop.shares.append(int(rows))
        return with_stand_in(batch, rows)

    wrap(stack, OwnedIterator, "_next_internal", draw)


def predict(session: Session, loop: Loop, compute: Predict, arguments: dict[str, Any]) -> Any:
    """Give the predictions of all rows of ``arguments["x"]``, on every rank that calls it.

    Raises :class:`TrainingError` for shares of rows whose order is not known, or that do not get a prediction each.
    """
    x = arguments["x"]
    if isinstance(x, tf.data.Dataset) and is_sharded(x):
        return _of_shares(session, loop, compute, x)
    states = session.states_of(loop.model)
    if not _may_be_parted(session, arguments) or states.draws or _keeps_in_python(loop):
        return _by_itself(session, loop, compute, x)
    arrays = [leaf for leaf in tree.flatten(x) if leaf is not None]
    rows, batch = len(arrays[0]), arguments["batch_size"] or _KERAS_BATCH
    batches, size = -(-rows // batch), session.collectives.size
    input_summary = [rows, batch, int(loop.model.built), _digest(arrays, loop.model)]
    ranks = session.collectives.gather(input_summary)
    if (ranks != ranks[0]).any() or not loop.model.built or batches < BATCHES_PER_RANK * size:
        return _by_itself(session, loop, compute, x)
    begin, end = (batch * mark for mark in rank_slice(batches, session.collectives.rank, size))
    states.begin(loop.model)
    outputs = _noted(session, loop, compute, tree.map_structure(lambda a: None if a is None else a[begin:end], x))
    gathered = _gathered(session, outputs) if _all(session, not states.goes_on()) else None
    if gathered is not None:
        return gathered
    states.restore(loop.model)
    return _by_itself(session, loop, compute, x)


def _by_itself(session: Session, loop: Loop, compute: Predict, x: Any) -> Any:
    """Predict all rows on this rank."""
    outputs = _noted(session, loop, compute, x)
    if _is_stopped(session):
        session.raise_stopped("a prediction")
    return outputs


def _noted(session: Session, loop: Loop, compute: Predict, x: Any) -> Any:
    """Predict ``x``, and note what variables are used and whether random numbers are drawn."""
    states, draws = session.states_of(loop.model), session.streams.draws
    with states.watching() if session.many else nullcontext():
        outputs = compute(x)
    states.draws = states.draws or session.streams.draws != draws
    return outputs


def _is_stopped(session: Session) -> bool:
    """Whether the run is to stop in the prediction under way; one within a ``fit`` stops at its next step."""
    return session.context.stop.requested and [loop.kind for loop in session.loops] == ["predict"]


def _may_be_parted(session: Session, arguments: dict[str, Any]) -> bool:
    """Whether all ranks are known to come to this call, with arrays.

    A cell that asked for its rank may call ``predict`` on one of them alone, and so may a callback of ``fit``.
    """
    leaves = [leaf for leaf in tree.flatten(arguments["x"]) if leaf is not None]
    return (
        session.many
        and session.strategy.lockstep
        and len(session.loops) == 1
        and not session.context.calls.rank
        and threading.current_thread() is threading.main_thread()
        and arguments["callbacks"] is None
        and arguments["steps"] is None
        and bool(leaves)
        and all(isinstance(leaf, (np.ndarray, tf.Tensor)) and len(leaf.shape) > 0 for leaf in leaves)
        and len({int(leaf.shape[0]) for leaf in leaves}) == 1
    )


def _keeps_in_python(loop: Loop) -> bool:
    """Whether Python of the user's own runs for each batch, and may count them."""
    names = names_in_code(loop.model)
    return names is not None and (loop.runs_eagerly or bool(names & {"numpy_function", "py_function"}))


def _digest(arrays: Sequence[Any], model: Any) -> int:
    """A number that tells arrays, and the weights of ``model``, from others; of each weight a sample."""
    weights = [raw(variable).read_value() for variable in model.variables]
    return of_arrays([*arrays, *(w[:: max(1, len(w) // _SAMPLED)] if w.shape.rank else w for w in weights)])


def _all(session: Session, well: bool) -> bool:
    """Whether all ranks are ``well``; raises :class:`RunStopped` where one was asked to stop."""
    every = session.collectives.gather([int(well), int(_is_stopped(session))])
    if every[:, 1].any():
        session.raise_stopped("a prediction")
    return bool(every[:, 0].all())


def _gathered(session: Session, outputs: Any) -> Any | None:
    """The outputs of all ranks, one rank's after another; None where they cannot be put together."""
    leaves = tree.flatten(outputs)
    plain = all(isinstance(leaf, np.ndarray) and leaf.ndim > 0 and leaf.dtype.name in _TRAVEL for leaf in leaves)
    shapes = zlib.crc32(repr([(leaf.dtype.name, leaf.shape[1:]) for leaf in leaves]).encode()) if plain else 0
    ranks = session.collectives.gather([int(plain), shapes])
    if not plain or (ranks != ranks[0]).any():
        return None
    concat = session.collectives.concat
    return tree.map_structure(lambda leaf: np.asarray(concat([tf.convert_to_tensor(leaf)])[0]), outputs)


def _of_shares(session: Session, loop: Loop, compute: Predict, dataset: Any) -> Any:
    """Predict this rank's share of each batch, and put the rows of all ranks into their order."""
    if session.many:
        own_reads.refuse_cut(dataset)
        _refuse_alone(session)
    if session.exact:
        check_predicted(loop.model, dataset, session.reporter)
    numbers, by_rank = rows_by_step(dataset), is_by_rank(dataset)
    if numbers is None and not by_rank:
        _refuse_unordered(session)
        return compute(dataset)
    sizes: list[int] = []
    loop.shares = sizes
    attributes = Attributes(loop.model) if session.many and loop.runs_eagerly else None
    with session.drawing_for_shares():
        outputs = _noted(session, loop, compute, dataset)
    if session.many and session.states_of(loop.model).draws:
        note_draws(session.streams.taken(), session.reporter, "predict()", "predictions")
        loop.model.predict_function = None
    for name in attributes.changed_names() if attributes is not None else ():
        note_python_state(name, session.reporter)
    kept = np.repeat([size > 0 for size in sizes], [max(size, 1) for size in sizes])
    fits = all(isinstance(leaf, np.ndarray) and leaf.shape[:1] == kept.shape for leaf in tree.flatten(outputs))
    rows = _gathered(session, tree.map_structure(lambda leaf: leaf[kept], outputs)) if _all(session, fits) else None
    if rows is None:
        raise TrainingError(
            "predict() on a fed DataFrame needs a model that returns one or more arrays of numbers with a prediction "
            "for each row; this one does not. Add predictions in Spark: tfos_magic.frames.predict(model, df, ...)."
        )
    of_step = [np.full(size, step) if numbers is None else numbers(step) for step, size in enumerate(sizes)]
    places = session.collectives.concat([tf.constant(np.concatenate(of_step).astype(np.int64))])[0]
    order = np.argsort(places, kind="stable")  # by step: rows of a step come by rank
    return tree.map_structure(lambda leaf: leaf[order], rows)


def _refuse_alone(session: Session) -> None:
    if session.strategy.name == "async":
        raise TrainingError(
            "predict() on a fed DataFrame would see only this worker's rows: under --strategy async, workers do not "
            "wait for each other. Add predictions in Spark: tfos_magic.frames.predict(model, df, ...)."
        )


def _refuse_unordered(session: Session) -> None:
    if session.many:
        raise TrainingError(
            "predict() cannot tell which prediction belongs to which row, because the rows are shuffled or repeated "
            "in the cell, cached, joined or streamed. Pass the fed DataFrame itself or through map(), or "
            "tfos.dataset(..., shuffle=False), or add predictions in Spark: tfos_magic.frames.predict(model, df, ...)."
        )
