"""The ways on which sums over ranks travel, behind two protocols: one of tensors, one of NumPy arrays.

Each rank's values come in; their sum over all ranks goes out, the same on each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfos_magic.errors import ClusterError

Array = np.ndarray[Any, Any]


class PeerLost(ClusterError):
    """A peer died, is stuck, or does something else; the message says which."""


def astray(ranks: object) -> str:
    """What to say when peers came to another operation than this rank."""
    return (
        f"rank {ranks} is at a different operation: the cell does not do the same, or not as often, on every worker. "
        "Take the same number of steps on all: count them, as a loop timed by the clock takes different numbers on "
        "each worker, or let all follow what tfos.broadcast() returns"
    )


class GroupTransport(Protocol):
    """Sums tensors over the ranks of a group; all ranks call the same operations in the same order.

    ``name`` says in words what it travels on; ``sent`` is the number of bytes this rank has sent to others. ``waited``
    are the seconds until all others had come to an operation, ``exchanged`` those that it took from there, where the
    wire can tell.
    """

    @property
    def name(self) -> str: ...

    @property
    def sent(self) -> int: ...

    @property
    def waited(self) -> float: ...

    @property
    def exchanged(self) -> float: ...

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sum each tensor over all ranks, eagerly or in a graph; the same bits come back on every rank."""
        ...

    def mean(self, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Average float ``tensors`` over all ranks, each by its ``weight``, a float32 scalar; give the sums of
        ``summed`` after them.

        What a rank with weight zero has does not count, whatever it is; without any weight the mean is zero. Values of
        16 bits are added in float32 and rounded once.
        """
        ...

    def concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenate tensors over ranks along their first axis, in the order of ranks.

        All ``tensors`` of a rank have one length, which may differ between ranks and from call to call.
        """
        ...

    def align(self) -> None:
        """Make the ranks agree on what they number, should one have traced a graph more often."""
        ...

    def explain(self, error: Exception) -> str | None:
        """Tell why peers did not answer, where ``error`` comes of that; None for any other error."""
        ...

    def abort(self, reason: str) -> None:
        """Make what waits, here and on peers, fail now. May be called from any thread, more than once."""
        ...

    def close(self) -> None:
        """Give back what the wire holds; nothing can be summed afterwards."""
        ...


class AllReduce(Protocol):
    """Reduces and gathers NumPy arrays over ranks, one call at a time.

    ``failure`` says why it is broken, empty while it is not. ``waited`` are the seconds until all ranks had come to a
    call.
    """

    @property
    def name(self) -> str: ...

    @property
    def sent(self) -> int: ...

    @property
    def waited(self) -> float: ...

    @property
    def failure(self) -> str: ...

    def reduce(self, local_arrays: Sequence[Array], results: Sequence[Array], averaged: int, weight: float) -> float:
        """Leave in ``results`` the sums over ranks of ``local_arrays``, flat arrays, and give the sum of the weights.

        The first ``averaged`` become weighted means. Raises :class:`PeerLost` when a peer is lost, late or elsewhere.
        """
        ...

    def gather(self, local_arrays: Sequence[Array], operation: int) -> list[Array]:
        """Give what all ranks have, by rank: ``local_arrays``, one after another, of any lengths; all are flat bytes.

        Holds until the next call. ``operation``, of 32 bits, names what it is for. Raises :class:`PeerLost` as above.
        """
        ...

    def abort(self, reason: str) -> None: ...

    def close(self) -> None: ...


def mean_by_sum(
    wire: GroupTransport, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What :meth:`GroupTransport.mean` gives, for a wire that can only sum: values are weighted before, and divided
    after."""
    exact = [tf.cast(t, tf.float32) if t.dtype.size == 2 else t for t in tensors]
    weighted = [tf.math.multiply_no_nan(t, tf.cast(weight, t.dtype)) for t in exact]
    *totals, whole = wire.sum([*weighted, *summed, tf.cast(weight, tf.float32)])
    means = [tf.math.divide_no_nan(t, tf.cast(whole, t.dtype)) for t in totals[: len(tensors)]]
    return [tf.cast(m, t.dtype) for m, t in zip(means, tensors, strict=True)] + totals[len(tensors) :]


def place_of_rows(
    wire: GroupTransport, rank: int, size: int, tensors: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where this rank's rows of ``tensors`` begin among those of all ranks, and how many these are."""
    lengths = wire.sum([tf.one_hot(rank, size, tf.shape(tensors[0])[0], 0, dtype=tf.int32)])[0]
    return tf.reduce_sum(lengths[:rank]), tf.reduce_sum(lengths)


def among_zeros(tensor: tf.Tensor, offset: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Put ``tensor`` at row ``offset`` of ``total`` rows of zeros: over ranks these sum up to all rows."""
    room = total - offset - tf.shape(tensor)[0]
    return tf.pad(tensor, [[offset, room], *([0, 0] for _ in tensor.shape[1:])])
