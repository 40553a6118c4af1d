"""What decides a training beside its rows is compared between the workers: numbers of a cell, and what came of them.

A number that a worker makes of its own rows, such as a class weight counted in a loop over a fed DataFrame, trains a
model that is nobody's; a learning rate made so lets the workers' models part.
"""

from __future__ import annotations

import inspect
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training import refusals
from tfos_magic.training.checkpointing.snapshot import optimizers
from tfos_magic.training.inputs.digests import of_arrays
from tfos_magic.training.inputs.marks import has_shares, inputs_of, is_marked
from tfos_magic.training.keras_seam.data.input_pipelines import nodes_of
from tfos_magic.training.logs.metrics import NUMBERS
from tfos_magic.training.loop import Loop
from tfos_magic.training.loop_state import TrainingState
from tfos_magic.training.stop_votes import ends_by_itself

NEAR = 1e-3
"""By how much weights may differ that the same gradients gave: processors of different kinds round differently."""

REMEDY = (
    "The cause is a value computed from one worker's rows, as in a loop over a fed DataFrame. Compute such values in "
    "Spark (df.agg), from logs of fit() and evaluate(), which cover all rows, or with tfos.allreduce(value)."
)


def begin_fit(session: TrainingState, loop: Loop, arguments: Mapping[str, Any], callbacks: Sequence[Any]) -> None:
    """Before a ``fit``: refuse numbers that differ, and agree on whether callbacks act after batches."""
    session.looks.settle()
    if not session.strategy.lockstep:
        refusals.note_batch_callbacks(callbacks, session.reporter)
        return
    agree_on_batches(session, loop, callbacks, {**of_fit(arguments), **of_optimizers(loop.model)})


def agree_on_batches(
    session: TrainingState, loop: Loop, callbacks: Sequence[Any], digests: Mapping[str, int] | None = None
) -> None:
    """Find out, on all ranks, whether the model or a callback on any of them acts on what it has after batches."""
    if session.strategy.lockstep:
        acts = any(map(refusals.acts_on_batches, callbacks)) or ends_by_itself(loop.model)
        loop.heeds_batches = any_wishes(session, acts, digests or {})


def any_wishes(session: TrainingState, wish: bool, digests: Mapping[str, int]) -> bool:
    """Whether any rank has a wish. Raises :class:`TrainingError` where ranks have other ``digests`` beside it, unless
    the cell has asked which rank it runs on."""
    wishes, *columns = session.collectives.gather([wish, *digests.values()]).T
    other = [what for what, column in zip(digests, columns, strict=True) if (column != column[0]).any()]
    if other and not session.context.calls.rank:
        raise TrainingError(f"the workers have different {' and '.join(other)}. {REMEDY}")
    return bool(wishes.any())


def stop_training(session: TrainingState, fit: Any) -> property:
    """The ``stop_training`` of models: a wish of this rank, which the loop of Keras's ``fit`` sees when all ranks know
    of it, at the next step or epoch's end. Everybody else sees the wish itself.

    Callbacks look at it, and TensorFlow does before it sets an attribute, which it leaves out where that has the value.
    """
    code = inspect.unwrap(fit).__code__

    def get(model: Any) -> bool:
        loop = session.loop
        if loop is not None and loop.model is model and loop.kind == "fit" and sys._getframe(1).f_code is code:
            return loop.agreed
        return bool(vars(model).get("stop_training", False))

    def wish(model: Any, value: bool) -> None:
        vars(model)["stop_training"] = value

    return property(get, wish)


def of_fit(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Digests of numbers that a ``fit`` is given, by what they are."""
    x, weights = arguments.get("x"), arguments.get("class_weight")
    constants = list(_constants(x)) if isinstance(x, tf.data.Dataset) and has_shares(x) else []
    return {
        "class weights": zlib.crc32(repr(sorted((weights or {}).items())).encode()),
        "constants used in map() on the fed DataFrame": zlib.crc32(b"".join(sorted(constants))),
    }


def of_optimizers(model: Any) -> dict[str, int]:
    """A digest of the scalars of a model's optimizers, such as the learning rate."""
    scalars = [v for o in optimizers(model) for v in o.variables if len(v.shape) == 0 and v.dtype in NUMBERS]
    return {"learning rates or step counts": of_arrays([np.asarray(v) for v in scalars])}


def of_logs(loop: Loop, logs: Mapping[str, Any]) -> dict[str, int]:
    """A digest of the logs that callbacks go by, to six digits: a callback may have put one of its own there."""
    numbers = {name: logs[name] for name in loop.monitored if isinstance(logs.get(name), (int, float, np.number))}
    values = [f"{name}={float(number):.6g}" for name, number in numbers.items()]
    return {f"values of {', '.join(loop.monitored)}": zlib.crc32(" ".join(values).encode())}


def end_cell(session: TrainingState) -> None:
    """At the end of a cell: refuse weights that a loop of its own has left different on the workers."""
    session.reporter.settle()
    if not (session.many and session.strategy.lockstep) or session.collectives.lost:
        return
    for end in session.ending:
        end()
    assigned = list(session.assigned.values())
    local_digests = [of_arrays([v.read_value() for v in assigned]), zlib.crc32(repr(session.saves).encode())]
    apart, saves = ((column != column[0]).any() for column in session.collectives.gather(local_digests).T)
    if apart:
        refusals.refuse_apart([v.name for v in assigned[:3]], not all(v.trainable for v in assigned))
    if saves and not session.context.calls.rank:
        raise TrainingError(f"the workers saved the model, or read its weights, after different steps. {REMEDY}")
    refuse_parted(session, [v for variables in session.learning.values() for v in variables])


def refuse_parted(session: TrainingState, variables: Sequence[Any]) -> None:
    """Raise :class:`TrainingError` where the ranks' values of ``variables``, which have learnt together, are apart."""
    names = [variable.name for variable in _parted(session, variables)]
    if names and not session.context.calls.rank:
        raise TrainingError(f"the workers' weights have diverged: {', '.join(names[:3])}. {REMEDY}")


def refuse_parted_statistics(session: TrainingState, model: Any) -> None:
    """Raise :class:`TrainingError` where ranks collect other values in what is not trained, as in a maximum that the
    rows of the first batch did not change."""
    collected = [v for v in model.non_trainable_weights if v.dtype in (*NUMBERS, "bool")]
    names = [variable.path for variable in _parted(session, collected)]
    if names and not session.context.calls.rank:
        raise TrainingError(
            f"the workers have different values in {', '.join(names[:3])}, where the model collects something of the "
            "rows of one worker alone: before the first step it was not seen to be a mean or a sum over rows. Weights "
            "that depend on it differ from those of one process. Let it change by means or sums over rows, or train "
            "with one worker (-n 1)."
        )


def _parted(session: TrainingState, variables: Sequence[Any]) -> list[Any]:
    """Those of the ``variables`` that are further apart between ranks than rounding makes them."""
    collectives = session.collectives
    digests = collectives.gather([of_arrays([np.asarray(v) for v in variables])])
    if (digests == digests[0]).all():
        return []
    local_values = [tf.cast(v, tf.float64) for v in variables]
    means = [total / collectives.size for total in collectives.all_reduce(local_values)]
    apart = [_apart(mine, mean) for mine, mean in zip(local_values, means, strict=True)]
    furthest = collectives.gather([int(1e9 * part) for part in apart]).max(0)
    return [v for v, part in zip(variables, furthest, strict=True) if part > 1e9 * NEAR]


def _apart(mine: tf.Tensor, mean: tf.Tensor) -> float:
    """The largest difference by the largest value, 1 at most, as where a value is not finite."""
    size = float(tf.reduce_max(tf.abs(mean))) if tf.size(mean) else 0.0
    apart = float(tf.reduce_max(tf.abs(mine - mean))) / (size or 1.0) if tf.size(mean) else 0.0
    return min(apart, 1.0) if np.isfinite(apart) else 1.0


def _constants(dataset: Any) -> Iterator[bytes]:
    """The constants in functions on the way from shares to ``dataset``, of those that draw no random numbers."""
    if is_marked(dataset):
        return
    for wrapper in dataset._functions():
        nodes = nodes_of(wrapper.function.graph)
        if not any("Random" in node.op or "Stateless" in node.op for node in nodes):
            yield from (node.attr["value"].tensor.SerializeToString() for node in nodes if node.op == "Const")
            captured = [t for t in wrapper.function.captured_inputs if t.dtype.is_floating or t.dtype.is_integer]
            yield from (str(of_arrays([tensor])).encode() for tensor in captured)
    for source in inputs_of(dataset):
        yield from _constants(source)
