"""The iterators that a cell draws batches from by itself."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tfos_magic.training.logs.progress import Reporter
from tfos_magic.training.step import rows_of_leaf


class Iterators:
    """Which iterator gave the batch that is under way. One that a loop left with ``break`` is gone by then.

    ``in_graph`` tells that a loop over shares in a graph is being traced.
    """

    def __init__(self) -> None:
        self._drawn: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._count = 0
        self.in_graph = False

    def begin(self, iterator: Any, shares: bool, counts: bool) -> None:
        """``iterator`` was made; ``shares`` says whether it gives this rank's part of batches, and it ``counts`` unless
        Keras made it for a loop of its own."""
        iterator._tfos_shares = shares
        if counts:
            self.drawn(iterator)

    def drawn(self, iterator: Any) -> None:
        """``iterator`` gave a batch. In a graph it stands for one outside, and is not counted."""
        if self.shares(iterator) is not None:
            self._count += 1
            self._drawn[iterator] = self._count

    def end(self, iterator: Any) -> None:
        """``iterator`` gave all that it has."""
        self._drawn.pop(iterator, None)

    @staticmethod
    def shares(iterator: Any) -> bool | None:
        """Whether ``iterator`` gives shares; None where it came as an argument into a graph, which hides it."""
        return getattr(iterator, "_tfos_shares", None)

    @property
    def gives_shares(self) -> bool:
        """Whether the batch that is under way is this rank's share."""
        latest = max(self._drawn, key=lambda iterator: self._drawn[iterator], default=None)
        return self.in_graph or bool(self.shares(latest))


class DrawnRows:
    """How many rows the batches have that a loop draws between two of its steps: the last one's count for all."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._rows, self._steps, self._differ = -1, -1, False

    def note(self, batch: Any, steps: int) -> None:
        """A ``batch`` was drawn after so many ``steps``."""
        if steps != self._steps:
            self.end(steps)
        counts = [int(rows) for rows in map(rows_of_leaf, tf.nest.flatten(batch)) if rows is not None] or [-1]
        self._differ |= len({*counts, *([self._rows] if self._rows >= 0 else [])}) > 1
        self._rows, self._steps = counts[0], steps

    def end(self, steps: int) -> None:
        """An iterator gave all that it has, or a step was taken since."""
        if self._differ and steps != self._steps:
            self._reporter.notice(
                "A loop draws several batches for a step, and they have different numbers of rows, as when two fed "
                "DataFrames are zipped. Gradients are weighted by this worker's rows of the last one, so weights may "
                "differ from those of one process: give both the same number of rows, or draw them with one DataFrame."
            )
        self._rows, self._differ = -1, False
