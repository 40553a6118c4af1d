"""The ways on which sums over ranks travel, behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tfos_magic.errors import ClusterError


class PeerLost(ClusterError):
    """A peer died, is stuck, or does something else; the message says which."""


class Wire(Protocol):
    """Sums tensors over the ranks of a group; all ranks call the same operations in the same order."""

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sum each tensor over all ranks, eagerly or in a graph; the same bits come back on every rank."""
        ...

    def sum_rows(self, tensor: tf.Tensor, offset: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        """Put ``tensor`` at row ``offset`` of ``total`` rows of zeros and sum these over all ranks.

        ``total`` is the same on all ranks and may change from call to call.
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
