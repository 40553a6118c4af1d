"""One training or test step while it is traced: how many rows it has, and what the ranks decide in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training.collectives import Collectives


class Trying(Protocol):
    """A step that is tried or built, and not taken: what it would apply is seen, or left out."""

    def apply(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None: ...


class States:
    """Variables as they are before a step, which a rank without ``rows`` puts back."""

    def __init__(self, variables: Sequence[Any], rows: tf.Tensor) -> None:
        self._variables, self._rows, self._graph = variables, rows, tf.compat.v1.get_default_graph()
        self._before = [variable.read_value() for variable in variables]

    def renew(self) -> None:
        """From here on they are put back as they are now; not where the step is in a branch of the user's."""
        if self._graph is tf.compat.v1.get_default_graph():
            self._before = [variable.read_value() for variable in self._variables]

    def put_back(self) -> None:
        """Where this rank has no rows, have them as they were."""

        def assign() -> None:
            for variable, before in zip(self._variables, self._before, strict=True):
                variable.assign(before)

        tf.cond(self._rows > 0, lambda: None, assign)


class Step:
    """A step of one rank.

    ``rows`` is a float32 scalar tensor, the rows of this rank in the step. ``vote`` is this rank's vote, a float32
    tensor of shape (2,): stop the run, end the training. ``counted`` stores the sum of all votes in ``vote_sum``, a
    variable of shape (3,). Where ``copied``, a boolean scalar tensor, is true, every rank has the whole batch instead
    of a part of it. ``digest`` is that of the global batch, as this rank has it. Gradients that are ``united`` are
    those of all ranks already. ``own`` is what the model gathers of this rank's rows alone.
    """

    def __init__(
        self,
        rows: tf.Tensor,
        vote: tf.Tensor,
        vote_sum: tf.Variable | None,
        collectives: Collectives,
        copied: tf.Tensor | None = None,
        digest: tf.Tensor | None = None,
    ) -> None:
        self.rows = rows
        self.vote = vote
        self.digest = tf.zeros([], tf.float32) if digest is None else digest
        self.collectives = collectives
        self.has_voted = False
        self.united = False
        self.own: States | None = None
        self._vote_sum = vote_sum
        self._copied = copied
        self._total: tf.Tensor | None = None
        self._graph: Any = None
        self._counts: Counter[Any] = Counter()

    def count(self, what: Any) -> int:
        """How often ``what`` was met in this step before."""
        self._counts[what] += 1
        return self._counts[what] - 1

    @property
    def copied(self) -> tf.Tensor:
        """Whether every rank has the whole batch, a boolean scalar."""
        return tf.constant(False) if self._copied is None else self._copied

    def on_copies(self) -> Step:
        """This step, where every rank is known to have the whole batch."""
        self._copied = tf.constant(True)
        return self

    def total(self) -> tf.Tensor:
        """Rows of all ranks, a float32 scalar: an all-reduce of its own, for what needs it before gradients."""
        if self._total is None or self._graph is not tf.compat.v1.get_default_graph():
            self._sum(tf.zeros([0], tf.float32))
        return self._total

    def summed(self, value: tf.Tensor) -> tf.Tensor:
        """Sum a float tensor over the ranks that have rows; of the same shape, in float64 or float32."""
        summand = value if value.dtype == tf.float64 else tf.cast(value, tf.float32)
        summand = tf.where(self.rows > 0, summand, tf.zeros_like(summand))
        if summand.dtype == tf.float64:
            return self.collectives.all_reduce([summand])[0]
        return tf.reshape(self._sum(tf.reshape(summand, [-1])), tf.shape(summand))

    def scale(self) -> tf.Tensor:
        """Rows of the global batch for each row of this rank, a float64 scalar; 0 where it has none."""
        rows = tf.cast(self.rows, tf.float64)
        ratio = tf.math.divide_no_nan(tf.cast(self.total(), tf.float64), rows)
        return ratio if self._copied is None else tf.where(self._copied, tf.sign(rows), ratio)

    def decided(self, compute: Callable[[], Any]) -> Any:
        """Give what ``compute`` computes over the rows of all ranks."""
        return compute()

    def counted(self, votes: tf.Tensor, apart: tf.Tensor | float = 0.0) -> None:
        """Store the sum of all votes, and whether ranks had batches ``apart`` from each other (above 0)."""
        self.has_voted = True
        if self._vote_sum is not None:
            self._vote_sum.assign(tf.concat([votes, [apart]], 0))

    def _sum(self, vector: tf.Tensor) -> tf.Tensor:
        sums = self.collectives.all_reduce([tf.concat([[self.rows], self.vote, vector], 0)])[0]
        self.counted(sums[1:3])
        # A tensor of one graph is of no use in another, such as the body of a loop that the user's step holds.
        self._total, self._graph = sums[0], tf.compat.v1.get_default_graph()
        return sums[3:]


def rows_in(data: Any) -> tf.Tensor:
    """Number of rows of a batch, ``(x, y)`` or whatever a ``train_step`` takes, as an int64 scalar tensor."""
    if (rows := rows_of(data)) is None:
        raise TrainingError("a batch has no tensor with rows: give fit() batches of rows, like (x, y)")
    return rows


def rows_of_leaf(leaf: Any) -> tf.Tensor | None:
    """The rows of one tensor of a batch, an int64 scalar; None where it is a scalar, or no tensor."""
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    if not hasattr(leaf, "shape") or tf.TensorShape(leaf.shape).rank == 0:
        return None
    return tf.shape(leaf, tf.int64)[0]


def rows_of(batch: Any) -> tf.Tensor | None:
    """The rows of an element of a dataset: those of its first tensor that has any."""
    return next((rows for rows in map(rows_of_leaf, tf.nest.flatten(batch)) if rows is not None), None)


def checked_rows(batch: Any) -> Any:
    """How many rows each tensor of ``batch`` has, an int64 scalar; None where none has rows.

    It fails where they have different numbers: what is a mean over more rows of one than of another is not the sum of
    what the ranks compute of their shares.
    """
    counts = [rows for rows in map(rows_of_leaf, tf.nest.flatten(batch)) if rows is not None]
    if len(counts) < 2:
        return counts[0] if counts else None
    text = (
        "The inputs of a step have different numbers of rows, as when datasets of different sizes are zipped, or one "
        "has a value per batch. Workers split all inputs by the same row numbers, so weights would differ from those "
        "of one process. Give all inputs as many rows, in the last batch too, and pass a value per batch as a scalar; "
        "or train with one worker (-n 1). Rows:"
    )
    equal = tf.reduce_all(tf.equal(tf.stack(counts), counts[0]))
    with tf.control_dependencies([tf.debugging.Assert(equal, [text, *counts])]):
        return tf.identity(counts[0])


def with_stand_in(data: Any, rows: tf.Tensor) -> Any:
    """Give ``data`` back, or one row of zeros in its place where it has none.

    Not every operation gives an empty batch the right shape (a fused convolution does not), so a rank without rows
    computes on a stand-in, and what comes of it counts with weight zero. Sparse and ragged data are left as they are.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if _is_batch(leaf)]
    if all(leaf.shape.rank and leaf.shape[0] for leaf in leaves):  # the number of rows is known, and is not 0
        return data
    if any(isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in tf.nest.flatten(data)):
        return data
    filled = tf.cond(rows > 0, lambda: leaves, lambda: [_zero_row(leaf) for leaf in leaves])
    for leaf, whole in zip(leaves, filled, strict=True):
        whole.set_shape([None, *leaf.shape[1:]])
    rest = iter(filled)
    return tf.nest.map_structure(lambda leaf: next(rest) if _is_batch(leaf) else leaf, data)


def _is_batch(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.shape.rank != 0


def _zero_row(leaf: tf.Tensor) -> tf.Tensor:
    shape = tf.concat([[1], tf.shape(leaf)[1:]], 0)
    return tf.fill(shape, "") if leaf.dtype == tf.string else tf.zeros(shape, leaf.dtype)


def scaled_gradient(gradient: Any, step: Step) -> Any:
    """A sum over this rank's rows such that its mean by rows is that over the global batch; None stays None."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.math.multiply_no_nan(gradient.values, tf.cast(step.scale(), gradient.dtype))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient if gradient is None else tf.math.multiply_no_nan(gradient, tf.cast(step.scale(), gradient.dtype))
