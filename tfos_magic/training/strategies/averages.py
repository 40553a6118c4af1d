"""What ranks that train by themselves average: how a variable travels, and what becomes of the mean.

What travels is a variable's change since the last average. In 16 or 8 bits, what rounding leaves out is kept and goes
with the next change (error feedback: Seide et al. 2014, Karimireddy et al. 2019). Training may go on while an average
is under way; steps taken meanwhile are added to its result (CoCoD-SGD, Shen et al. 2019).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training.collectives import Collectives
from tfos_magic.transport.messages import StrategyOptions

_LEVELS = 127
_NUMBERS = itertools.count()
_MOST_RANKS = 64
_SMALL = 256  # elements, below which nothing is gained by fewer bits


class Averaged:
    """A ``variable`` with what the ranks have in common of it: its value after the last average.

    The mean of the changes is taken for the gradient of an outer optimizer, with Nesterov's ``momentum``. ``kind`` is
    the dtype in which changes travel, where that is fewer bits than they have.
    """

    def __init__(
        self,
        variable: Any,
        learning_rate: float = 1.0,
        momentum: float = 0.0,
        kind: tf.DType | None = None,
        overlaps: bool = False,
    ) -> None:
        self._value = variable.value
        self._exact = tf.as_dtype(variable.dtype if variable.dtype == "float64" else "float32")
        self._learning_rate, self._momentum = learning_rate, momentum
        large = self._exact == tf.float32 and (self._value.shape.num_elements() or 0) >= _SMALL
        self.kind = kind if large and kind is not None else self._exact
        self._anchor = tf.Variable(self._value, trainable=False, name="tfos_anchor")
        self._velocity, self._rest, self._begun = (
            tf.Variable(tf.zeros(self._value.shape, dtype), trainable=False, name=f"tfos_{name}") if needed else None
            for name, dtype, needed in [
                ("outer", self._exact, momentum),
                ("rest", self._exact, self.kind != self._exact),
                ("begun", self._value.dtype, overlaps),
            ]
        )

    def restart(self) -> None:
        """Measure changes from here; momentum stays, as an optimizer's state does between two fits."""
        self._anchor.assign(self._value)
        if self._rest is not None:
            self._rest.assign(tf.zeros_like(self._rest))

    def change(self) -> tf.Tensor:
        """What is to be averaged, in float32 or float64."""
        change = self._cast(self._value) - self._cast(self._anchor)
        return change if self._rest is None else change + self._rest

    def send(self, change: tf.Tensor, part: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """``change`` as it travels: where it is int8, this rank's ``part`` of the mean, in steps of ``scale``.

        What that leaves out is kept for the next time, and all of a rank that has no part.
        """
        if self._begun is not None:
            self._begun.assign(self._value)
        if self._rest is None:
            return change
        if self.kind == tf.int8:
            sent = tf.cast(tf.round(tf.math.divide_no_nan(tf.math.multiply_no_nan(change, part), scale)), tf.int8)
            carried = tf.math.divide_no_nan(self._received(sent, scale), part)
        else:
            sent = tf.cast(change, self.kind)
            carried = tf.math.multiply_no_nan(self._cast(sent), tf.cast(part > 0, self._exact))
        self._rest.assign(change - carried)
        return sent

    def take(self, mean: tf.Tensor, scale: tf.Tensor) -> None:
        """Go on from the mean of what was sent."""
        ahead = self._received(mean, scale)
        if self._velocity is not None:
            velocity = self._velocity.assign(self._momentum * self._velocity + ahead)
            ahead = ahead + self._momentum * velocity
        common = self._cast(self._anchor) + self._learning_rate * ahead
        meanwhile = (
            tf.zeros([], self._exact) if self._begun is None else self._cast(self._value) - self._cast(self._begun)
        )
        self._anchor.assign(tf.cast(common, self._anchor.dtype))
        self._value.assign(tf.cast(common + meanwhile, self._value.dtype))

    def _received(self, sent: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        exact = self._cast(sent)
        return exact * scale if sent.dtype == tf.int8 else exact

    def _cast(self, value: Any) -> tf.Tensor:
        return tf.cast(value, self._exact)


class Fragment:
    """Variables that are averaged together, each rank's changes weighted by the rows it saw since the last time."""

    def __init__(self, averaged: Sequence[Averaged], collectives: Collectives) -> None:
        self._averaged = sorted(averaged, key=lambda each: each.kind == tf.int8)
        self._floats = sum(each.kind != tf.int8 for each in averaged)
        self._collectives, self._number = collectives, next(_NUMBERS)
        self._like: list[tf.TensorSpec] = []
        with tf.device("CPU:0"):
            self._rows = tf.Variable(0.0, trainable=False, name="tfos_local_rows")
            self._scales = tf.Variable(tf.zeros([len(averaged) - self._floats]), trainable=False, name="tfos_scales")

    def restart(self) -> None:
        """Forget what was not averaged."""
        self._rows.assign(0.0)
        for averaged in self._averaged:
            averaged.restart()

    def count(self, rows: tf.Tensor) -> tf.Tensor:
        return self._rows.assign_add(rows)

    def average(self, vote: tf.Tensor) -> tf.Tensor:
        """Average now; gives the sum of the votes, float32 of shape (2,)."""
        floats, rows, summed = self._changes()
        return self._take(self._collectives.mean(floats, rows, [*summed, rows, vote]))

    def begin(self, vote: tf.Tensor) -> None:
        """Begin an average, and let it go on meanwhile."""
        floats, rows, summed = self._changes()
        self._like = self._collectives.begin_mean(self._number, floats, rows, [*summed, rows, vote])

    def end(self) -> tf.Tensor:
        """Take the average that was begun; gives the sum of the votes that went with it."""
        return self._take(self._collectives.end_mean(self._number, self._like))

    def _changes(self) -> tuple[list[tf.Tensor], tf.Tensor, list[tf.Tensor]]:
        """Changes that are to be averaged by the rows, and those in int8, which are to be summed."""
        rows = self._rows.read_value()
        changes = [averaged.change() for averaged in self._averaged]
        part, scales = self._scaled(changes[self._floats :], rows)
        sent = [
            averaged.send(change, part, scale)
            for averaged, change, scale in zip(self._averaged, changes, scales, strict=True)
        ]
        self._rows.assign(0.0)
        return sent[: self._floats], rows, sent[self._floats :]

    def _scaled(self, changes: Sequence[tf.Tensor], rows: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """This rank's part of the mean, and steps of int8 by variable that are as small as a sum of all ranks allows.

        A step is not a number where a change is not finite on any rank.
        """
        if not changes:
            return rows, self._steps_of()
        largest = tf.stack([tf.math.multiply_no_nan(tf.reduce_max(tf.abs(change)), rows) for change in changes])
        total, sums = self._collectives.all_reduce([rows, largest])
        levels = _LEVELS - (self._collectives.size + 1) // 2  # each rank rounds by half a step
        self._scales.assign(tf.math.divide_no_nan(sums, total * levels))
        return tf.math.divide_no_nan(rows, total), self._steps_of()

    def _steps_of(self) -> list[tf.Tensor]:
        scales = self._scales.read_value()
        return [tf.zeros([])] * self._floats + [scales[i] for i in range(len(self._averaged) - self._floats)]

    def _take(self, results: Sequence[tf.Tensor]) -> tf.Tensor:
        *means, total, votes = results

        def take() -> tf.Tensor:
            for averaged, mean, scale in zip(self._averaged, means, self._steps_of(), strict=True):
                averaged.take(mean, scale)
            return tf.constant(True)

        # Ranks that had no rows at all leave everything as it is.
        tf.cond(total > 0, take, lambda: tf.constant(False))
        return votes


def fragments_of(
    weights: Sequence[Any], others: Sequence[Any], options: StrategyOptions, collectives: Collectives
) -> list[Fragment]:
    """Parts of ``weights`` of about one size, not more than there are, which have the outer optimizer; ``others`` are
    averaged plainly, with the last part."""
    momentum, alone = options.outer_momentum, collectives.size == 1
    default = 0.7 if momentum else 1.0  # DiLoCo found 0.7 best; without momentum 1 is a plain average
    learning_rate = default if options.outer_learning_rate is None else options.outer_learning_rate
    kind = None if options.compression == "none" or alone else tf.as_dtype(options.compression)
    if kind == tf.int8 and collectives.size > _MOST_RANKS:
        raise TrainingError(
            f"compression int8 leaves too few values for sums over {collectives.size} workers: use bfloat16, or at "
            f"most {_MOST_RANKS} workers."
        )
    overlaps = options.overlap > 0 and not alone
    parts: list[list[Any]] = [[] for _ in range(max(1, min(options.fragments, len(weights))))]
    sizes = [0] * len(parts)
    for weight in sorted(weights, key=lambda w: -(w.value.shape.num_elements() or 0)):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += weight.value.shape.num_elements() or 0
        parts[smallest].append(Averaged(weight, learning_rate, momentum, kind, overlaps))
    parts[-1] += [Averaged(other, overlaps=overlaps) for other in others]
    return [Fragment(part, collectives) for part in parts]
