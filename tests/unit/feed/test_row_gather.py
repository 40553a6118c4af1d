"""A spooled feed shuffled: every row once an epoch, other orders, whole rows of every kind, iterators side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.feed.test_spooled_dataset import fill, mappings
from tfos_magic.columns.numpy_arrays import tensor_arrays
from tfos_magic.columns.selection import Selection
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.trainer.row_gather import RowGather
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset
from tfos_magic.feed.trainer.spooled_rows import SpooledRows
from tfos_magic.training.checkpointing.resumable_iterator import ResumableIterator

pytestmark = pytest.mark.slow

NAMES = ["x", "flag", "s", "id"]
PARTITIONS = [[300, 4, 80], [], [1], [200, 215]]
ROWS = 800


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(str(tmp_path))
    yield made
    made.close()


def ids(dataset: tf.data.Dataset) -> list[int]:
    return [number for batch in dataset.as_numpy_iterator() for number in batch["id"].tolist()]


def shuffled(spool: Spool, seed: int = 1, batch_size: int = 32, **place: int) -> tf.data.Dataset:
    handle = fill(spool, PARTITIONS, feed_id=f"{place}", **place)
    return feed_dataset(handle, batch_size=batch_size, shuffle=True, seed=seed)


def test_each_epoch_has_every_row_once_and_another_order(spool: Spool) -> None:
    dataset = shuffled(spool)
    epochs = [ids(dataset) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(ROWS))] * 3
    assert len({tuple(epoch) for epoch in [*epochs, range(ROWS)]}) == 4


def test_the_same_seed_gives_the_same_epochs_and_another_seed_others(spool: Spool) -> None:
    one, again, other = (shuffled(spool, seed) for seed in (1, 1, 2))
    epochs = [ids(one), ids(one)]
    assert [ids(again), ids(again)] == epochs
    assert ids(other) != epochs[0]


def test_the_order_does_not_depend_on_the_blocks_that_rows_came_in(spool: Spool) -> None:
    few, many = (fill(spool, [blocks], feed_id=str(blocks)) for blocks in ([ROWS], [7] * 100 + [100]))
    one, other = (ids(feed_dataset(handle, batch_size=50, shuffle=True, seed=4)) for handle in (few, many))
    assert one == other


def test_rows_of_every_kind_stay_whole(spool: Spool) -> None:
    for batch in shuffled(spool).as_numpy_iterator():
        numbers = batch["id"]
        np.testing.assert_array_equal(batch["x"], np.repeat(numbers, 3).reshape(-1, 3).astype(np.float32))
        assert batch["flag"].dtype == np.bool_
        assert batch["flag"].tolist() == (numbers % 2 == 0).tolist()
        assert batch["s"].tolist() == [f"row {number}".encode() for number in numbers]


def test_ranks_take_as_many_rows_of_each_batch_as_without_shuffle(spool: Spool) -> None:
    sizes: dict[bool, list[list[int]]] = {True: [], False: []}
    seen: list[int] = []
    for rank in range(3):
        handle = fill(spool, PARTITIONS, rank, 3, f"{rank}")
        for shuffle in sizes:
            dataset = feed_dataset(handle, batch_size=37, shuffle=shuffle, seed=5)
            batches = [batch["id"].tolist() for batch in dataset.as_numpy_iterator()]
            sizes[shuffle].append([len(batch) for batch in batches])
            assert int(dataset.cardinality()) == len(batches) == 22
            seen += itertools.chain.from_iterable(batches) if shuffle else []
    assert sizes[True] == sizes[False]
    assert sorted(seen) == list(range(ROWS))


def test_a_rank_without_rows_steps_along(spool: Spool) -> None:
    handle = fill(spool, [[1]], rank=1, world=2)
    dataset = feed_dataset(handle, batch_size=8, shuffle=True)
    assert [batch["x"].shape for batch in dataset.as_numpy_iterator()] == [(0, 3)]


def test_iterators_side_by_side_each_have_a_whole_epoch_of_their_own(spool: Spool) -> None:
    expected = shuffled(spool, rank=0)
    epochs = [ids(expected), ids(expected)]
    dataset = shuffled(spool)
    pairs = list(tf.data.Dataset.zip((dataset, dataset)).as_numpy_iterator())
    assert [[n for pair in pairs for n in pair[side]["id"].tolist()] for side in (0, 1)] == epochs


def test_an_iterator_that_is_never_read_counts_for_no_epoch_and_one_that_is_dropped_for_one(spool: Spool) -> None:
    expected = shuffled(spool, rank=0)
    epochs = [ids(expected) for _ in range(3)]
    dataset = shuffled(spool)
    iter(dataset)
    assert ids(dataset) == epochs[0]
    next(iter(dataset))
    assert ids(dataset) == epochs[2]
    assert ids(shuffled(spool).repeat(3)) == list(itertools.chain.from_iterable(epochs))


def resumable(dataset: tf.data.Dataset) -> ResumableIterator:
    return ResumableIterator(distribute_strategy=tf.distribute.get_strategy(), x=dataset)


def rows_of(epochs: ResumableIterator) -> list[int]:
    return [number for _, _, batches in epochs for batch in batches for number in batch["id"].numpy().tolist()]


@pytest.mark.parametrize("chain", ["as it is", "mapped and zipped", "repeated", "with noise"])
def test_epochs_that_a_resumed_fit_leaves_behind_are_read_only_where_that_is_needed(
    spool: Spool, chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains: dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
        "as it is": lambda dataset: dataset,
        "mapped and zipped": lambda dataset: dataset.enumerate().map(lambda _, batch: batch).shuffle(3, seed=1).take(9),
        "repeated": lambda dataset: dataset.repeat(2),
        "with noise": lambda dataset: dataset.map(lambda batch: {**batch, "noise": tf.random.uniform([])}),
    }
    undisturbed = resumable(chains[chain](shuffled(spool, rank=0)))
    expected = [rows_of(undisturbed) for _ in range(4)][3]
    resumed = resumable(chains[chain](shuffled(spool)))
    read, take = [], RowGather.take
    monkeypatch.setattr(RowGather, "take", lambda *args: (read.append(args), take(*args))[1])
    resumed.skip_to(3, 0)
    assert bool(read) == (chain in ("repeated", "with noise"))
    assert rows_of(resumed) == expected


def test_two_feeds_of_rows_that_belong_together_stay_side_by_side(spool: Spool) -> None:
    handles = [fill(spool, PARTITIONS, feed_id=name) for name in "ab"]
    features = feed_dataset(handles[0], batch_size=32, selection=Selection(features=["x"]), shuffle=True, seed=3)
    labels = feed_dataset(handles[1], batch_size=32, selection=Selection(features=["id"]), shuffle=True, seed=3)
    for one, other in tf.data.Dataset.zip((features, labels)).as_numpy_iterator():
        assert one["x"][:, 0].tolist() == other["id"].tolist()


def test_numbers_are_copied_from_the_file_by_address_and_other_columns_are_not(spool: Spool) -> None:
    rows = SpooledRows(fill(spool, PARTITIONS))
    gather = RowGather(rows, NAMES)
    numbers = np.random.default_rng(0).permutation(ROWS)[:500]
    expected = tensor_arrays(rows.read(NAMES, 0, ROWS))
    for _ in range(2):
        for array, whole in zip(gather.take(numbers), expected, strict=True):
            np.testing.assert_array_equal(array, whole[numbers])
    assert {name for name, addresses in gather._columns.items() if addresses is not None} == {"x", "flag", "id"}


def test_datasets_that_went_leave_no_mapping(spool: Spool, tmp_path: Path) -> None:
    import gc

    before = mappings(tmp_path)
    for _ in range(5):
        dataset: Any = shuffled(spool).map(lambda batch: batch["x"])
        list(dataset.as_numpy_iterator())
    held = mappings(tmp_path)
    del dataset
    gc.collect()
    assert mappings(tmp_path) < held
    spool.close()
    assert mappings(tmp_path) < before + 1
