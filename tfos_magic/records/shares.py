"""Which rank gets which row, and which of its rows belong to which global batch.

Within a partition whole groups of ``world`` rows are dealt out, row ``i`` to rank ``i mod world``. What remains, the
partition's tail of fewer than ``world`` rows, goes on where the tails of the partitions before it stopped: row ``j`` of
it to rank ``(before + j) mod world``, with ``before`` the rows of those tails. So shares are equal to within one row
whatever the partitions, a rank gets at most one row of a tail, and a feeder needs to know nothing but its own
partition, for it sends its tail to all ranks. Once the sizes of the partitions are known, every rank can say alone
which row of each tail is its own, and where each global batch begins in its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def tail_size(rows: int, world: int) -> int:
    """How many rows of a partition of ``rows`` are left when whole groups have been dealt out, 0 to ``world - 1``."""
    return rows % world


def tail_row(rank: int, before: int, world: int) -> int:
    """Which row of a tail falls to ``rank``, where the tail is that long; ``before``: rows of the tails before it."""
    return (rank - before) % world


def share_size(rows: int, rank: int, world: int, before: int = 0) -> int:
    """How many rows of a partition of ``rows`` fall to ``rank``, the tails before it having ``before`` rows."""
    return rows // world + (tail_row(rank, before, world) < tail_size(rows, world))


def batch_boundaries(
    partitions: Sequence[tuple[int, int]], *, batch_size: int, rank: int, world: int
) -> npt.NDArray[np.int64]:
    """Where each global batch begins among the rows of ``rank``: int64, shape ``(steps + 1,)``, never falling.

    ``partitions`` holds ``(partition, rows)`` in the DataFrame's order; global batch ``k`` is rows ``[k*batch_size,
    (k+1)*batch_size)`` of the DataFrame. The rows of ``rank`` in that batch are ``[out[k], out[k+1])`` of its own,
    which may be none; every rank has the same number of steps.
    """
    sizes = np.array([rows for _, rows in partitions], dtype=np.int64)
    tails = sizes % world
    turns = (rank - _running(tails)[:-1]) % world
    own = sizes // world + (turns < tails)
    starts, own_starts = _running(sizes), _running(own)
    steps = -(-int(starts[-1]) // batch_size)
    marks = np.minimum(np.arange(steps + 1, dtype=np.int64) * batch_size, starts[-1])
    # side="right" skips empty partitions, so that a mark is looked up in the partition that holds its row.
    at = np.minimum(np.searchsorted(starts, marks, side="right") - 1, len(sizes) - 1)
    rows = marks - starts[at]
    dealt = sizes[at] - tails[at]
    within = -((rank - np.minimum(rows, dealt)) // world) + (turns[at] < rows - dealt)
    return np.asarray(own_starts[at] + within, dtype=np.int64)


def _running(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
