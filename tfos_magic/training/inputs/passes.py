"""Passes over a dataset that repeats and shuffles anew: how far an iterator reads ahead decides which orders are left.

All iterators of such a dataset take their orders from one source. One that was left in the middle of a pass, as by
``steps_per_epoch``, may have begun the next pass ahead of its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

from tfos_magic.training.inputs.marks import inputs_of
from tfos_magic.training.logs.progress import Reporter


def repeated_shuffles(dataset: Any, repeats: bool = False) -> Iterator[Any]:
    """The datasets on the way to ``dataset`` that shuffle anew for each pass of one that repeats."""
    kind = type(dataset).__name__
    if repeats and kind == "_ShuffleDataset" and dataset._reshuffle_each_iteration is not False:
        yield dataset
    for source in inputs_of(dataset):
        yield from repeated_shuffles(source, repeats or kind == "_RepeatDataset")


class BegunPasses:
    """The datasets of that kind which were begun already."""

    def __init__(self) -> None:
        self._begun: WeakSet[Any] = WeakSet()

    def begin(self, dataset: Any, reporter: Reporter) -> None:
        """``dataset`` is begun; say so where time decides in which order, as it does in one process."""
        shuffles = list(repeated_shuffles(dataset))
        if any(each in self._begun for each in shuffles):
            reporter.notice(
                "A dataset that repeats shuffled passes was left in the middle of one and is restarted. Its order "
                "depends on how far TensorFlow had read ahead, in a single process as well. For a fixed order, give "
                "each fit() its own dataset, or whole passes, without repeat() and steps_per_epoch."
            )
        self._begun.update(shuffles)
