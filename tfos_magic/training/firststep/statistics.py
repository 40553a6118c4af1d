"""What layers of a model's own gather of the rows that they see, made that of the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfos_magic.training.firststep.laws import Law
from tfos_magic.training.step import Step


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
