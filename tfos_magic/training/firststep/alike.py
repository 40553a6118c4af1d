"""Whether the workers' models compute the same of the same rows, as those of rank 0, given to all.

They do not where a step holds a number that a worker made of its own rows, such as a weight of its loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.collectives import Collectives
from tfos_magic.training.firststep.laws import StepValues
from tfos_magic.training.firststep.step_trial import StepTrial

TOLERANCE = 1e-3
_CAST = {tf.bool: tf.int32, tf.uint8: tf.int32, tf.int8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32}
_SENT = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64, *_CAST)


def different(collectives: Collectives, trial: StepTrial, batch: Any) -> list[Any]:
    """The names of numbers that ranks compute otherwise of rank 0's ``batch``; all ranks call it with one of theirs.

    Empty too where rows cannot be sent, as strings and ragged ones cannot, or where a rank cannot try the step.
    """
    leaves = tf.nest.flatten(batch)
    if not _known_to_all(collectives, all(_is_sent(leaf) for leaf in leaves)):
        return []
    rows = [_of_rank_0(collectives, leaf) for leaf in leaves]
    count = int(rows[0].shape[0])
    try:
        seen: StepValues | None = trial.run(tf.nest.pack_sequence_as(batch, rows), count, count)
    except Exception:  # whatever a user's step may raise: it could be tried on this rank's rows
        seen = None
    if not _known_to_all(collectives, seen is not None) or seen is None:
        return []
    return _apart(collectives, list(seen.values), list(seen.values.values()))


def _is_sent(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.dtype in _SENT and bool(leaf.shape.rank)


def _known_to_all(collectives: Collectives, mine: bool) -> bool:
    return bool(collectives.gather([int(mine)]).all())


def _of_rank_0(collectives: Collectives, leaf: tf.Tensor) -> tf.Tensor:
    cast_leaf = tf.cast(leaf, _CAST.get(leaf.dtype, leaf.dtype))
    return tf.cast(collectives.concat([cast_leaf if collectives.rank == 0 else cast_leaf[:0]])[0], leaf.dtype)


def _apart(collectives: Collectives, names: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    counts = collectives.gather([len(names)])[:, 0]
    if not names or (counts != counts[0]).any():
        return []
    table = np.zeros((collectives.size, len(names), 2))
    with np.errstate(over="ignore", invalid="ignore"):
        table[collectives.rank] = [(np.sum(value), np.sum(np.abs(value))) for value in values]
    table = np.asarray(collectives.all_reduce([tf.constant(table)])[0])
    sums, sizes = table[..., 0], table[..., 1]
    allowed = TOLERANCE * sizes[0] + np.finfo(np.float32).tiny
    far = (np.abs(sums - sums[0]) > allowed) | (np.abs(sizes - sizes[0]) > allowed)
    other = np.logical_and(far.any(0), np.isfinite(sizes).all(0))
    return [name for name, is_other in zip(names, other.tolist(), strict=True) if is_other]
