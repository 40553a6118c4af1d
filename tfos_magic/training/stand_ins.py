"""Steps of a rank without rows of a batch, on a stand-in, and what layers gather of rows, made that of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfos_magic.training.firststep.laws import Law
from tfos_magic.training.logs import metrics
from tfos_magic.training.loop_state import TrainingState
from tfos_magic.training.step import States, Step, with_stand_in


def counted_step(
    session: TrainingState, model: Any, laws: Sequence[Any], step: Callable[[Any], Any], data: Any, rows: tf.Tensor
) -> Any:
    """Run a step on a stand-in where this rank has no rows, and undo what that did to the metrics, and to moving
    averages that are this rank's own. ``laws`` are those of the model's statistics."""
    kept = [States(metrics.state(model), rows)]
    gathered = [] if session.strategy.exact else model.non_trainable_variables
    if own := [metrics.raw(v) for v in gathered if v.dtype in metrics.NUMBERS]:
        kept.append(States(own, rows))
        if session.step is not None:
            session.step.own = kept[-1]
    statistics = Statistics(laws)
    logs = step(with_stand_in(data, rows))
    if session.step is not None:
        statistics.unite(session.step)
    for states in kept:
        states.put_back()
    return logs


class Statistics:
    """Variables that a step changes by its rows, each with its law, ``MEAN`` or ``SUM``, as they are before it."""

    def __init__(self, statistics: Sequence[tuple[Any, Law]]) -> None:
        self._before = [(variable, law, variable.read_value()) for variable, law in statistics]

    def unite(self, step: Step) -> None:
        """Let each have changed by what the rows of all ranks make of it, in a step of all ranks."""
        if not self._before:
            return
        local_changes = [
            tf.cast(variable, tf.float64) - tf.cast(before, tf.float64) for variable, _, before in self._before
        ]
        weights = [step.rows if law is Law.MEAN else tf.sign(step.rows) for _, law, _ in self._before]
        sums = step.collectives.all_reduce(
            [tf.math.multiply_no_nan(o, tf.cast(w, o.dtype)) for o, w in zip(local_changes, weights, strict=True)]
        )
        for (variable, law, before), total in zip(self._before, sums, strict=True):
            change = total / tf.cast(step.total(), total.dtype) if law is Law.MEAN else total
            variable.assign(tf.cast(tf.cast(before, change.dtype) + change, variable.dtype))
