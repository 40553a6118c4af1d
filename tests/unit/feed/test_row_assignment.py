"""Sharing rows out and cutting them into global batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tfos_magic.feed.row_assignment import BatchSizes, batch_boundaries, row_numbers, tail_row, tail_size

SIZES = [[7], [0, 5, 0, 0, 3, 1], [1, 1, 1, 1], [0, 0, 9], [13, 0, 2, 31], [4, 4, 4]]


def owners(sizes: list[int], world: int) -> list[int]:
    """The rank of every row of the DataFrame, by the rule said row by row."""
    ranks, before = [], 0
    for size in sizes:
        dealt = size - size % world
        ranks += [row % world for row in range(dealt)]
        ranks += [(before + row) % world for row in range(size - dealt)]
        before += size - dealt
    return ranks


def random_partitions(seed: int) -> list[int]:
    """Few or many partitions, small or large ones, some empty."""
    random = np.random.default_rng(seed)
    return [int(size) for size in random.integers(0, random.integers(1, 40), random.integers(1, 60))]


@pytest.mark.parametrize("sizes", [*SIZES, *map(random_partitions, range(25))])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_row_of_a_global_batch_is_in_exactly_one_ranks_share_of_it(sizes: list[int], world: int) -> None:
    owner, total = np.array(owners(sizes, world)), sum(sizes)
    for batch_size in (1, 2, 3, 4, 7, max(1, total), total + 5):
        found: dict[int, list[int]] = {}
        for rank in range(world):
            bounds = batch_boundaries(list(enumerate(sizes)), batch_size=batch_size, rank=rank, world=world)
            own = np.flatnonzero(owner == rank).tolist()
            assert bounds[0] == 0
            assert bounds[-1] == len(own)
            assert len(bounds) - 1 == -(-total // batch_size)
            for step, (start, stop) in enumerate(pairwise(bounds)):
                found.setdefault(step, []).extend(own[start:stop])
        expected = {k: list(range(k * batch_size, min(total, (k + 1) * batch_size))) for k in found}
        assert {k: sorted(rows) for k, rows in found.items()} == expected


@pytest.mark.parametrize("seed", range(50))
def test_totals_of_ranks_differ_by_one_row_at_most_whatever_the_partitions(seed: int) -> None:
    sizes = random_partitions(seed)
    for world in range(1, 9):
        totals = [batch_boundaries(list(enumerate(sizes)), batch_size=5, rank=r, world=world)[-1] for r in range(world)]
        assert max(totals) - min(totals) <= 1
        assert sum(totals) == sum(sizes)


def test_shares_of_a_partition_and_the_rows_of_its_tail_follow_the_rule() -> None:
    sizes = [5, 1, 0, 8, 3, 3, 2]
    for world in range(1, 5):
        before = 0
        for partition, rows in enumerate(sizes):
            ranks = owners(sizes[: partition + 1], world)[sum(sizes[:partition]) :]
            for rank in range(world):
                in_tail = tail_row(rank, before, world) < tail_size(rows, world)
                assert rows // world + in_tail == ranks.count(rank)
            tail = ranks[rows - tail_size(rows, world) :]
            assert all(tail_row(rank, before, world) == row for row, rank in enumerate(tail))
            before += len(tail)


def test_partition_ids_may_have_gaps() -> None:
    with_gaps = batch_boundaries([(2, 3), (5, 4)], batch_size=3, rank=1, world=2)
    assert with_gaps.tolist() == batch_boundaries([(0, 3), (1, 4)], batch_size=3, rank=1, world=2).tolist()


def test_boundaries_of_a_million_partitions_take_no_loop() -> None:
    sizes = np.full(1_000_000, 3).tolist()
    bounds = batch_boundaries(list(enumerate(sizes)), batch_size=128, rank=1, world=4)
    assert bounds.dtype == np.int64
    assert bounds[-1] == 750_000


def sizes_on_the_fly(sizes: list[int], pieces: np.random.Generator, **of: int) -> tuple[list[int], list[int]]:
    """The sizes of a rank's parts as its rows come in pieces, and how many of its rows were known at each."""
    on_the_fly, given, known = BatchSizes(**of), [], []
    own = 0
    for rows in sizes:
        left = rows // of["world"]
        while left:
            piece = int(pieces.integers(1, left + 1))
            left, own = left - piece, own + piece
            given += on_the_fly.dealt(piece)
            known += [own] * (len(given) - len(known))
        mine, more = on_the_fly.ended(rows)
        own += mine is not None
        given += more
        known += [own] * (len(given) - len(known))
    given += on_the_fly.finished()
    return given, known


@pytest.mark.parametrize("seed", range(40))
def test_batches_cut_while_rows_come_are_those_cut_when_all_are_known(seed: int) -> None:
    sizes, pieces = random_partitions(seed), np.random.default_rng(seed)
    for world, batch_size in ((1, 7), (2, 1), (3, 5), (5, 64), (4, 1000)):
        for rank in range(world):
            of = {"batch_size": batch_size, "rank": rank, "world": world}
            given, known = sizes_on_the_fly(sizes, pieces, **of)
            bounds = batch_boundaries(list(enumerate(sizes)), **of)
            assert given == np.diff(bounds).tolist()
            assert all(known >= bound for known, bound in zip(known, bounds[1:], strict=False)), "rows yet to come"


def test_the_rows_of_all_ranks_are_those_of_the_dataframe_in_the_order_in_which_they_are_dealt() -> None:
    sizes = [7, 0, 1, 5, 3]
    for world in (1, 2, 3, 4):
        own = [row_numbers(list(enumerate(sizes)), rank=rank, world=world) for rank in range(world)]
        assert sorted(np.concatenate(own).tolist()) == list(range(16))
        for rank, rows in enumerate(own):
            bounds = batch_boundaries(list(enumerate(sizes)), batch_size=4, rank=rank, world=world)
            assert [set(rows[a:b] // 4) for a, b in pairwise(bounds) if a < b] == [
                {step} for step, (a, b) in enumerate(pairwise(bounds)) if a < b
            ]
