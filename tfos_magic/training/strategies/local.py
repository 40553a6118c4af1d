"""Strategy ``local``: every rank trains by itself for some steps, then the ranks average their weights.

That is SparkNet's scheme (Moritz et al. 2016). The average may be taken for the gradient of an outer optimizer with
Nesterov momentum, as in DiLoCo (Douillard et al. 2023), and parts of the weights may take turns, while training goes on
(Streaming DiLoCo, Douillard et al. 2025).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf

from tfos_magic.training.collectives import Collectives
from tfos_magic.training.context import RunContext
from tfos_magic.training.step import Step
from tfos_magic.training.strategies.averages import Fragment, fragments_of
from tfos_magic.training.strategies.strategy import Update
from tfos_magic.transport.messages import StrategyOptions

_FLOATS = ("float16", "bfloat16", "float32", "float64")


class LocalStrategy:
    """Steps of each rank's own optimizer, and an average of all weights each ``sync_every`` of them."""

    name: ClassVar[str] = "local"
    lockstep: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    def __init__(self, context: RunContext) -> None:
        self._collectives = context.collectives
        self._options = context.options
        self._of_models: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Replica]] = weakref.WeakKeyDictionary()
        self._replicas: dict[tuple[int, ...], Replica] = {}
        self._model: Any = None
        self._averages_statistics = False

    def begin(self, model: Any) -> None:
        """Count from here on; the weights as they are now are what the next average is measured against."""
        self._model, self._replicas = model, self._of_models.setdefault(model, {})
        self._averages_statistics = False
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
        if step.own is not None:  # what is averaged is not what a stand-in's rows made of it
            step.own.put_back()
        step.counted(replica.count(step))
        if step.own is not None:
            step.own.renew()

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
            statistics = [v for v in self._model.non_trainable_variables if v.dtype in _FLOATS]
            others = [] if self._averages_statistics else statistics  # which another replica of this fit averages
            state = update.slots() if self._options.average_state else []
            with tf.init_scope():
                replica = Replica(list(variables), [*others, *state], self._options, self._collectives)
            replica.has_statistics = bool(others)
            self._replicas[key] = replica
        self._averages_statistics |= self._replicas[key].has_statistics
        return self._replicas[key]


class Replica:
    """This rank's copy of ``weights``, and of ``others`` that are averaged plainly with them, between two averages.

    The fragments of the weights take turns: each is averaged once in ``sync_every`` steps.
    """

    has_statistics = False
    """Whether the model's statistics are among the others."""

    def __init__(
        self, weights: Sequence[Any], others: Sequence[Any], options: StrategyOptions, collectives: Collectives
    ) -> None:
        self._fragments = fragments_of(weights, others, options, collectives)
        self._every = options.sync_every // len(self._fragments)
        self._overlap = options.overlap if collectives.size > 1 else 0
        with tf.device("CPU:0"):
            self._steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="tfos_local_steps")
            self._under_way = tf.Variable(-1, dtype=tf.int32, trainable=False, name="tfos_under_way")

    def restart(self) -> None:
        """Forget steps that were not averaged."""
        self._steps.assign(0)
        self._under_way.assign(-1)
        for fragment in self._fragments:
            fragment.restart()

    def count(self, step: Step) -> tf.Tensor:
        """Count a step and average what is due after it; gives the votes, float32 of shape (2,)."""
        counted = [fragment.count(step.rows) for fragment in self._fragments]
        with tf.control_dependencies(counted):  # not where the data have come to their end
            steps = self._steps.assign_add(1)
        turn = tf.cast((steps // self._every - 1) % len(self._fragments), tf.int32)
        due, none = steps % self._every == 0, lambda: tf.zeros_like(step.vote)
        if not self._overlap:
            return tf.cond(due, lambda: self._one_of(turn, lambda fragment: fragment.average(step.vote)), none)
        tf.cond(due, lambda: self._one_of(turn, lambda fragment: self._begin(fragment, turn, step.vote)), none)
        under_way = self._under_way.read_value()
        done = (under_way >= 0) & (steps % self._every == self._overlap)
        return tf.cond(done, lambda: self._one_of(under_way, self._end), none)

    def settle(self) -> None:
        """Average eagerly what has not been averaged."""
        if (under_way := int(self._under_way.numpy())) >= 0:
            self._end(self._fragments[under_way])
        steps = int(self._steps.numpy())
        if steps % self._every or (steps and (self._overlap or len(self._fragments) > 1)):
            for fragment in self._fragments:
                fragment.average(tf.zeros(2))
        self._steps.assign(0)

    def _one_of(self, number: tf.Tensor, act: Callable[[Fragment], tf.Tensor]) -> tf.Tensor:
        return tf.switch_case(number, [partial(act, fragment) for fragment in self._fragments])

    def _begin(self, fragment: Fragment, number: tf.Tensor, vote: tf.Tensor) -> tf.Tensor:
        fragment.begin(vote)
        self._under_way.assign(number)
        return tf.zeros_like(vote)

    def _end(self, fragment: Fragment) -> tf.Tensor:
        self._under_way.assign(-1)
        return fragment.end()
