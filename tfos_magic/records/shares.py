"""Which rank gets which row, and which of its rows belong to which global batch.

Row ``i`` of partition ``p`` goes to rank ``(p + i) mod world``. So every rank's share of any run of consecutive rows of
one partition is the same to within one row, a feeder needs to know nothing but its own partition, and, once the sizes
of all partitions are known, every rank can say alone where each global batch begins in its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def first_row(partition: int, row: int, rank: int, world: int) -> int:
    """Offset from ``row`` of the next row of ``partition`` that goes to ``rank``, 0 to ``world - 1``."""
    return (rank - partition - row) % world


def share_size(rows: int, partition: int, rank: int, world: int) -> int:
    """How many of the first ``rows`` rows of ``partition`` go to ``rank``."""
    return -((first_row(partition, 0, rank, world) - rows) // world)


def batch_boundaries(
    partitions: Sequence[tuple[int, int]], *, batch_size: int, rank: int, world: int
) -> npt.NDArray[np.int64]:
    """Where each global batch begins among the rows of ``rank``: int64, shape ``(steps + 1,)``, never falling.

    ``partitions`` holds ``(partition, rows)`` in the DataFrame's order; global batch ``k`` is rows ``[k*batch_size,
    (k+1)*batch_size)`` of the DataFrame. The rows of ``rank`` in that batch are ``[out[k], out[k+1])`` of its own,
    which may be none; every rank has the same number of steps.
    """
    ids = np.array([partition for partition, _ in partitions], dtype=np.int64)
    sizes = np.array([rows for _, rows in partitions], dtype=np.int64)
    first = (rank - ids) % world
    own = -((first - sizes) // world)
    starts, own_starts = _running(sizes), _running(own)
    steps = -(-int(starts[-1]) // batch_size)
    marks = np.minimum(np.arange(steps + 1, dtype=np.int64) * batch_size, starts[-1])
    # side="right" skips empty partitions, so that a mark is looked up in the partition that holds its row.
    at = np.minimum(np.searchsorted(starts, marks, side="right") - 1, len(sizes) - 1)
    within = -((first[at] - (marks - starts[at])) // world)
    return np.asarray(own_starts[at] + within, dtype=np.int64)


def _running(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
