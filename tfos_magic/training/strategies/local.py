"""Strategy ``local``: every rank trains by itself for some steps, then the ranks average their weights.

That is SparkNet's scheme (Moritz et al. 2016). The average may be taken for the gradient of an outer optimizer with
Nesterov momentum, as in DiLoCo (Douillard et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfos_magic.training.collectives import Collectives
from tfos_magic.training.context import RunContext
from tfos_magic.training.step import Step
from tfos_magic.training.strategies.strategy import Update
from tfos_magic.transport.messages import StrategyOptions

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_HALF = (tf.float16, tf.bfloat16)


class LocalStrategy:
    """Steps of each rank's own optimizer, and an average each ``sync_every`` of them."""

    name: ClassVar[str] = "local"
    lockstep: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    def __init__(self, context: RunContext) -> None:
        self._collectives = context.collectives
        self._options = context.options
        self._replicas: dict[tuple[int, ...], Replica] = {}
        self._model: Any = None

    def begin(self, model: Any) -> None:
        """Count from here on; the weights as they are now are what the next average is measured against."""
        self._model = model
        for replica in self._replicas.values():
            replica.restart()

    def begin_epoch(self, epoch: int) -> None:
        """Nothing to prepare."""

    def apply(self, step: Step, gradients: Sequence[Any], variables: Sequence[Any], update: Update) -> None:
        """Take a step of this rank, and the average when it is due. Votes travel with the average.

        A rank without rows takes no step.
        """
        update.build(variables)
        replica = self._replica(variables, update)

        def train() -> tf.Tensor:
            update(gradients, variables)
            return tf.constant(True)

        tf.cond(step.rows > 0, train, lambda: tf.constant(False))
        step.counted(replica.count(step))

    def settle(self, model: Any) -> None:
        """Average now, unless no rank has taken a step since."""
        for replica in self._replicas.values():
            replica.settle()

    def end(self, model: Any) -> None:
        """Average what the last steps of the fit left."""
        self.settle(model)

    def _replica(self, variables: Sequence[Any], update: Update) -> Replica:
        """What is averaged when these variables are; a model with several optimizers has one replica for each."""
        key = tuple(id(variable) for variable in variables)
        if key not in self._replicas:
            others = [] if self._replicas else [v for v in self._model.non_trainable_variables if v.dtype in _FLOATS]
            if self._options.average_state:
                others += update.slots()
            with tf.init_scope():
                self._replicas[key] = Replica(list(variables), others, self._options, self._collectives)
        return self._replicas[key]


class Replica:
    """This rank's copy of ``weights``, and of ``others`` that are averaged plainly with them, between two averages."""

    def __init__(
        self, weights: Sequence[Any], others: Sequence[Any], options: StrategyOptions, collectives: Collectives
    ) -> None:
        self._weights = weights
        self._others = others
        self._collectives = collectives
        self._sync_every, self._momentum = options.sync_every, options.outer_momentum
        # DiLoCo found 0.7 best; without momentum 1 is a plain average.
        default = 0.7 if self._momentum else 1.0
        self._learning_rate = default if options.outer_learning_rate is None else options.outer_learning_rate
        self._outer = self._momentum != 0.0 or self._learning_rate != 1.0
        with tf.device("CPU:0"):
            self._steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="tfos_local_steps")
            self._rows = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="tfos_local_rows")
        anchored = weights if self._outer else []
        self._anchors = [tf.Variable(w.value, trainable=False, name="tfos_anchor") for w in anchored]
        self._momenta = [tf.Variable(tf.zeros_like(a), trainable=False, name="tfos_outer") for a in self._anchors]

    def restart(self) -> None:
        """Forget steps that were not averaged; momentum stays, as an optimizer's state does between two fits."""
        self._steps.assign(0)
        self._rows.assign(0.0)
        for anchor, weight in zip(self._anchors, self._weights, strict=False):
            anchor.assign(weight.value)

    def count(self, step: Step) -> tf.Tensor:
        """Count a step and average where it is the last before that; gives the votes, float32 of shape (2,)."""
        rows = self._rows.assign_add(tf.cast(step.rows, tf.float64))
        with tf.control_dependencies([rows]):  # not where the data have come to their end
            steps = self._steps.assign_add(1)
        due = steps >= self._sync_every
        return tf.cond(due, lambda: self._average(rows, step.vote), lambda: tf.zeros_like(step.vote))

    def settle(self) -> None:
        """Average eagerly what has not been averaged."""
        if int(self._steps.numpy()) > 0:
            self._average(self._rows.read_value(), tf.zeros(2))

    def _average(self, rows: tf.Tensor, vote: tf.Tensor) -> tf.Tensor:
        """Replace all by their mean over ranks, each weighted by the rows it saw since the last average."""
        variables = [*self._weights, *self._others]
        weighted = [_weighted(variable.value, rows) for variable in variables]
        *sums, total, votes = self._collectives.all_reduce([*weighted, rows, vote])

        def assign() -> tf.Tensor:
            means = [tf.cast(s / tf.cast(total, s.dtype), v.dtype) for s, v in zip(sums, variables, strict=True)]
            count = len(self._weights)
            for variable, mean in zip(self._others, means[count:], strict=True):
                variable.value.assign(mean)
            self._take_outer_step(means[:count])
            return tf.constant(True)

        # Ranks that had no rows at all leave everything as it is.
        tf.cond(total > 0, assign, lambda: tf.constant(False))
        self._steps.assign(0)
        self._rows.assign(0.0)
        return votes

    def _take_outer_step(self, means: Sequence[tf.Tensor]) -> None:
        if not self._outer:
            for weight, mean in zip(self._weights, means, strict=True):
                weight.value.assign(mean)
            return
        for weight, mean, anchor, momentum in zip(self._weights, means, self._anchors, self._momenta, strict=True):
            gradient = anchor.read_value() - mean
            velocity = momentum.assign(tf.cast(self._momentum, mean.dtype) * momentum + gradient)
            ahead = gradient + tf.cast(self._momentum, mean.dtype) * velocity
            weight.value.assign(anchor.assign_sub(tf.cast(self._learning_rate, mean.dtype) * ahead))


def _weighted(value: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    exact = tf.cast(value, tf.float32) if value.dtype in _HALF else tf.convert_to_tensor(value)
    return tf.math.multiply_no_nan(exact, tf.cast(rows, exact.dtype))
