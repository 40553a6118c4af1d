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
    share_sizes = sizes // world + (turns < tails)
    starts, own_starts = _running(sizes), _running(share_sizes)
    steps = -(-int(starts[-1]) // batch_size)
    marks = np.minimum(np.arange(steps + 1, dtype=np.int64) * batch_size, starts[-1])
    # side="right" skips empty partitions, so that a mark is looked up in the partition that holds its row.
    at = np.minimum(np.searchsorted(starts, marks, side="right") - 1, len(sizes) - 1)
    rows = marks - starts[at]
    dealt = sizes[at] - tails[at]
    within = -((rank - np.minimum(rows, dealt)) // world) + (turns[at] < rows - dealt)
    return np.asarray(own_starts[at] + within, dtype=np.int64)


def row_numbers(partitions: Sequence[tuple[int, int]], *, rank: int, world: int) -> npt.NDArray[np.int64]:
    """Which row of the DataFrame each row of ``rank`` is: int64, rising; ``partitions`` as above."""
    sizes = np.array([rows for _, rows in partitions], dtype=np.int64)
    tails = sizes % world
    turns = (rank - _running(tails)[:-1]) % world
    offsets = [
        np.append(np.arange(rank, rows - tail, world), rows - tail + turn if turn < tail else [])
        for rows, tail, turn in zip(sizes, tails, turns, strict=True)
    ]
    return np.concatenate([start + part for start, part in zip(_running(sizes), offsets, strict=False)]).astype(
        np.int64
    )


class BatchSizes:
    """The same for rows that come one after another: says how many rows of ``rank`` end each global batch.

    Tell it what came, in the DataFrame's order. Each call gives the sizes of this rank's parts of the global batches
    that are known to be complete by then, which may be none, and of which each may be 0.
    """

    def __init__(self, *, batch_size: int, rank: int, world: int) -> None:
        self._batch_size, self._rank, self._world = batch_size, rank, world
        self._before = self._tails = 0
        self._rank_rows = self._cut = 0
        self._dealt = 0
        self._steps = 0

    def dealt(self, rows: int) -> list[int]:
        """``rows`` of this rank came, of whole groups of the partition that goes on."""
        self._dealt += rows
        return self._complete(self._before + self._dealt * self._world, None)

    def ended(self, rows: int) -> tuple[int | None, list[int]]:
        """The partition had ``rows`` rows, tail included; gives the row of the tail that is this rank's, if one is."""
        turn = tail_row(self._rank, self._tails, self._world)
        mine = turn if turn < tail_size(rows, self._world) else None
        sizes = self._complete(self._before + rows, mine)
        self._rank_rows += rows // self._world + (mine is not None)
        self._before, self._tails = self._before + rows, self._tails + tail_size(rows, self._world)
        self._dealt = 0
        return mine, sizes

    def finished(self) -> list[int]:
        """All partitions have ended; gives the last part, where the last global batch is not full."""
        return [self._rank_rows - self._cut] if self._before > self._steps * self._batch_size else []

    def _complete(self, known: int, mine: int | None) -> list[int]:
        """Cut at every mark that ``known`` rows of the DataFrame reach; row ``mine`` of the tail is this rank's."""
        sizes = []
        while (self._steps + 1) * self._batch_size <= known:
            self._steps += 1
            boundary = self._rank_rows + self._within(self._steps * self._batch_size - self._before, mine)
            sizes.append(boundary - self._cut)
            self._cut = boundary
        return sizes

    def _within(self, rows: int, mine: int | None) -> int:
        """This rank's rows among the first ``rows`` of the partition, of which the groups that came are dealt."""
        dealt = self._dealt * self._world
        return -((self._rank - min(rows, dealt)) // self._world) + (mine is not None and mine < rows - dealt)


def _running(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
