"""Sharing rows out and cutting them into global batches."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from tfos_magic.records.shares import batch_boundaries, first_row, share_size

SIZES = [[7], [0, 5, 0, 0, 3, 1], [1, 1, 1, 1], [0, 0, 9], [13, 0, 2, 31], [4, 4, 4]]


def shared_out(sizes: list[int], rank: int, world: int) -> list[int]:
    """The global indices of a rank's rows, by the rule said row by row."""
    rows = [(partition, row) for partition, size in enumerate(sizes) for row in range(size)]
    return [index for index, (partition, row) in enumerate(rows) if (partition + row) % world == rank]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_row_of_a_global_batch_is_in_exactly_one_ranks_share_of_it(sizes: list[int], world: int) -> None:
    total = sum(sizes)
    for batch_size in (1, 2, 3, 4, 7, total, total + 5):
        found: dict[int, list[int]] = {}
        for rank in range(world):
            bounds = batch_boundaries(list(enumerate(sizes)), batch_size=batch_size, rank=rank, world=world)
            own = shared_out(sizes, rank, world)
            assert bounds[0] == 0
            assert bounds[-1] == len(own)
            assert len(bounds) - 1 == -(-total // batch_size)
            for step, (start, stop) in enumerate(pairwise(bounds)):
                found.setdefault(step, []).extend(own[start:stop])
        expected = {k: list(range(k * batch_size, min(total, (k + 1) * batch_size))) for k in found}
        assert {k: sorted(rows) for k, rows in found.items()} == expected


def test_share_sizes_and_first_rows_follow_the_rule() -> None:
    for rows, partition, world in product(range(12), range(5), range(1, 5)):
        for rank in range(world):
            due = [row for row in range(rows) if (partition + row) % world == rank]
            assert share_size(rows, partition, rank, world) == len(due)
            assert (partition + rows + first_row(partition, rows, rank, world)) % world == rank


def test_partition_ids_may_have_gaps() -> None:
    bounds = batch_boundaries([(2, 3), (5, 4)], batch_size=3, rank=1, world=2)
    own = [
        i for i, (p, row) in enumerate([(2, 0), (2, 1), (2, 2), (5, 0), (5, 1), (5, 2), (5, 3)]) if (p + row) % 2 == 1
    ]
    assert bounds.tolist() == [sum(index < mark for index in own) for mark in (0, 3, 6, 7)]


def test_boundaries_of_a_million_partitions_take_no_loop() -> None:
    sizes = np.full(1_000_000, 3).tolist()
    bounds = batch_boundaries(list(enumerate(sizes)), batch_size=128, rank=1, world=4)
    assert bounds.dtype == np.int64
    assert bounds[-1] == sum(share_size(3, partition, 1, 4) for partition in range(4)) * 250_000
