"""Steps of a rank that has no rows of a batch: it takes them, on a stand-in, for what all ranks exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfos_magic.training.firststep.statistics import Statistics
from tfos_magic.training.logs import metrics
from tfos_magic.training.state import TrainingState
from tfos_magic.training.step import with_stand_in


def counted_step(
    session: TrainingState, model: Any, laws: Sequence[Any], step: Callable[[Any], Any], data: Any, rows: tf.Tensor
) -> Any:
    """Run a step on a stand-in where this rank has no rows, and undo what that did to the metrics, and to moving
    averages that are this rank's own. ``laws`` are those of the model's statistics."""
    touched = metrics.state(model)
    if not session.strategy.exact:
        touched += [metrics.raw(v) for v in model.non_trainable_variables if v.dtype in metrics.NUMBERS]
    states = [(variable, variable.read_value()) for variable in touched]
    statistics = Statistics(laws)
    logs = step(with_stand_in(data, rows))
    if session.step is not None:
        statistics.unite(session.step)

    def undo() -> None:
        for variable, before in states:
            variable.assign(before)

    tf.cond(rows > 0, lambda: None, undo)
    return logs
