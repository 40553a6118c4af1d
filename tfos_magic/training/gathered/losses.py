"""Losses and metrics that are no mean or sum over rows, computed of the outputs for the rows of all workers.

The workers bring labels and outputs of a batch together, as SimCLR (Chen et al. 2020) does for its contrastive loss
over several machines. Each computes the loss of the global batch, and its gradient by the outputs for its own rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfos_magic.training.firststep.batches import apart
from tfos_magic.training.firststep.python_objects import is_own_code
from tfos_magic.training.firststep.step_trial import TrialStep
from tfos_magic.training.gathered.rows import exchanged, has_rows, leaves_of, of_own_rows, varied, with_leaves
from tfos_magic.training.step import Step

Compute = Callable[..., Any]

EXACT, ROUNDED = 1e-11, 2e-6
"""How far, by the largest, losses of the same outputs may be apart in float64 and in other types."""

MOST_BYTES_PER_ROW = 1 << 16
"""Of labels and outputs: more than that would take longer to exchange than gradients."""


class GatheredLosses:
    """Which losses are computed so, in one run: those that give one number, and those by which steps mix rows.

    The trial of a step on all of some rows shows which they are. In trials on parts, the other rows are those of it.
    """

    def __init__(self) -> None:
        self.at_work = False
        """Whether the loss that is being reduced is that of all rows."""
        self.counted_once = False
        """Whether the number that was computed last is that of all rows."""
        self.assumed: set[str] = set()
        """Names of losses with one number for a batch that are computed of a worker's own rows all the same."""
        self._gathered: set[Any] = set()
        self._tried: dict[Any, None] = {}
        self._unfit: set[Any] = set()
        self._possible: dict[Any, list[Any]] = {}
        self._owners: dict[int, Any] = {}
        self._by_row: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._values: Any = None

    def call(self, compute: Compute, loss: Any, arguments: Sequence[Any], step: Step, known_by: Any = None) -> Any:
        """Compute ``loss`` in a step; ``compute`` takes ``arguments``: labels, outputs and weights.

        So is the number that a function among the metrics gives for a batch, ``loss`` being the metric then, which is
        ``known_by`` the function: Keras makes metrics anew where a step that is tried was the first.
        """
        if self.at_work:  # within one that is: its rows are all there
            return compute(*arguments)
        owner = loss if known_by is None else known_by
        name = id(owner), loss is owner, step.count(("gathered", id(owner), loss is owner))
        self._owners[id(owner)] = owner
        value = self._called(name, compute, loss, arguments, step)
        self.counted_once = name in self._gathered
        return value

    def _called(self, name: Any, compute: Compute, loss: Any, arguments: Sequence[Any], step: Step) -> Any:
        if not isinstance(step, TrialStep):
            return self._of_all(compute, arguments, step, exchanged) if name in self._gathered else compute(*arguments)
        if not tf.executing_eagerly():
            return compute(*arguments)
        if step.of_all:
            return self._noted(name, compute, arguments, loss, step)
        if name in self._gathered and not self._fits(name, arguments, int(step.rows)):
            self._gathered.discard(name)
            self._unfit.add(name)
        if name not in self._gathered:
            return compute(*arguments)
        return self._of_all(compute, arguments, step, self._merge(name))

    @contextmanager
    def metric(self, metric: Any, step: Step) -> Iterator[None]:
        """While the function of ``metric`` is called, gather what it is given where it gives one number for a batch."""
        function, given = metric._fn, vars(metric)

        def called(*arguments: Any, **options: Any) -> Any:
            compute = partial(function, **options)
            if isinstance(step, TrialStep) and tf.executing_eagerly():
                compute = partial(_or_nothing, compute)
            return self.call(compute, metric, arguments, step, known_by=function)

        given["_fn"] = called
        try:
            yield
        finally:
            given["_fn"], self.counted_once = function, False

    def note(self, values: Any) -> None:
        """A loss gave ``values``, before their reduction."""
        self._values = values

    def may_drop_rows(self, loss: Any, values: Any, step: Step) -> bool:
        """Whether a loss may give other ``values`` than one for each row, as one of the user's own that leaves out rows
        which are masked; where the trial had one for each."""
        if self.at_work or isinstance(step, TrialStep) or not is_own_code(loss):
            return False
        is_vector = isinstance(values, tf.Tensor) and bool(values.shape.rank)
        return is_vector and self._by_row.get(loss, values.shape[0] is None)

    def gather_all(self) -> bool:
        """Gather all losses that can be; whether there is one that was not."""
        new = self._possible.keys() - self._gathered - self._unfit
        self._gathered |= new
        return bool(new)

    def gather_none(self) -> bool:
        """Compute all losses of this trial of a worker's own rows: what one reads beside what it is given is of these.
        Gives whether one was gathered, which is ``assumed`` to be what it is in the first batch."""
        given_up = self._gathered & self._tried.keys()
        self._gathered -= given_up
        self._unfit |= given_up
        self.assumed |= {getattr(self._owners[name[0]], "name", "loss") for name in given_up if name[1]}
        return bool(given_up)

    def begin(self) -> None:
        """Another step is tried."""
        self._tried.clear()
        self._unfit.clear()
        self._possible.clear()

    def forget(self) -> None:
        """The step could not be tried: its losses are not gathered."""
        self._gathered -= self._tried.keys()

    def found(self) -> list[int]:
        """What this rank found of the losses that were tried, in their order: 2 is gathered, 1 can be, 0 cannot."""
        return [2 if name in self._gathered else int(name in self._possible) for name in self._tried]

    def adopt(self, found: np.ndarray) -> bool:
        """Gather what a rank found is to be, and every rank can; whether that is another decision than this rank's.

        ``found`` is what they found, a row for each rank: where rounding decides, they find different things.
        """
        before = set(self._gathered)
        for name, of_ranks in zip(self._tried, found.T, strict=True):
            if of_ranks.max() < 2:
                continue
            if of_ranks.min() > 0:
                self._gathered.add(name)
            else:
                self._gathered.discard(name)
                self._unfit.add(name)
        return self._gathered != before

    def _noted(self, name: Any, compute: Compute, arguments: Sequence[Any], loss: Any, step: Step) -> Any:
        """Compute a loss of all rows of a trial, and see what it is."""
        self._tried[name] = None
        is_metric = isinstance(loss, keras.metrics.Metric)
        self._values, self.at_work = None, is_metric
        try:
            result = compute(*arguments)
        finally:
            self.at_work = False
        is_reduced = self._values is not None
        values = self._values if is_reduced and not is_metric else tf.convert_to_tensor(result)
        leaves, rows = leaves_of(arguments), int(step.rows)
        is_number = len(getattr(values, "shape", (None,))) == 0
        if is_reduced and not is_metric:
            self._by_row[loss] = not is_number and has_rows(values, rows)
        by_rows = all(has_rows(leaf, rows) for leaf in leaves) and name not in self._unfit
        known = getattr(loss, "reduction", None) not in (None, "none") if is_reduced and not is_metric else is_number
        if not (known and by_rows):
            self._gathered.discard(name)
            return result
        if sum(leaf.dtype.size * (leaf.shape.num_elements() or 0) for leaf in leaves) > MOST_BYTES_PER_ROW * rows:
            self.assumed |= {loss.name} if is_number and not is_metric else set()
            self._gathered.discard(name)
            return result
        self._possible[name] = [tf.stop_gradient(leaf) for leaf in leaves]
        if is_number or name in self._gathered or self._compares_rows(compute, arguments, values, rows):
            self._gathered.add(name)
        return result

    def _compares_rows(self, compute: Compute, arguments: Sequence[Any], whole: Any, rows: int) -> bool:
        """Whether a loss gives a row another value beside other rows: of the same outputs it is to be the very same.

        It is tried on other outputs as well, for those of a model may be alike in all rows before its first step.
        """
        if not has_rows(whole, rows) or not whole.dtype.is_floating:
            return False
        leaves = leaves_of(arguments)
        if self._tells_parts_apart(compute, arguments, leaves, whole):
            return True
        labels = len(leaves_of(arguments[:1]))
        others = [leaf if n < labels else varied(leaf, n) for n, leaf in enumerate(leaves)]
        self._values = None
        compute(*with_leaves(arguments, others))
        of_others = self._values
        return has_rows(of_others, rows) and self._tells_parts_apart(compute, arguments, others, of_others)

    def _tells_parts_apart(self, compute: Compute, arguments: Sequence[Any], leaves: Sequence[Any], whole: Any) -> bool:
        if not bool(tf.reduce_all(tf.math.is_finite(whole))):
            return False
        rows = int(whole.shape[0])
        allowed = (EXACT if whole.dtype == tf.float64 else ROUNDED) * tf.reduce_max(tf.abs(whole))
        for part in (apart(rows), ~apart(rows)):
            self._values, numbers = None, np.flatnonzero(part)
            try:
                compute(*with_leaves(arguments, [tf.gather(leaf, numbers) for leaf in leaves]))
            except Exception:  # of the user's code, which may read what a model keeps of all rows: parts of a step tell
                return False
            of_part = tf.gather(whole, numbers)
            if getattr(self._values, "shape", None) != of_part.shape:
                return True
            if not bool(tf.reduce_all(tf.abs(self._values - of_part) <= allowed)):
                return True
        return False

    def _fits(self, name: Any, arguments: Sequence[Any], rows: int) -> bool:
        """Whether what a part of ``rows`` rows gives has the shape of what all gave, as scores of all by all have not,
        and what is made of as many random numbers as all rows are."""
        shapes = zip(leaves_of(arguments), self._possible[name], strict=True)
        return all(mine.shape == (rows, *of_all.shape[1:]) for mine, of_all in shapes)

    def _merge(self, name: Any) -> Callable[[list[Any], Step], list[Any]]:
        whole = self._possible[name]

        def merged(leaves: list[Any], step: Step) -> list[Any]:
            own = apart(int(step.total()))
            own = own if int(own.sum()) == int(step.rows) else ~own
            return [
                tf.tensor_scatter_nd_update(tf.cast(other, leaf.dtype), np.flatnonzero(own)[:, None], leaf)
                for leaf, other in zip(leaves, whole, strict=True)
            ]

        return merged

    def _of_all(self, compute: Compute, arguments: Sequence[Any], step: Step, gather: Compute) -> tf.Tensor:
        self.at_work = True
        try:
            value = compute(*with_leaves(arguments, gather(leaves_of(arguments), step)))
        finally:
            self.at_work = False
        return of_own_rows(tf.convert_to_tensor(value), step)


def _or_nothing(compute: Compute, *arguments: Any) -> Any:
    """What a metric gives in a trial, or 0 where it fails of so few rows: a step has all those of the batch."""
    try:
        return compute(*arguments)
    except Exception:  # of the user's code, which raises it in the step where it is none of the rows
        return tf.zeros([])
