"""Orders of rows: every row once, another order each epoch, the same for the same seed; and in constant memory."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tfos_magic.feed.trainer.shuffle_order import BLOCK_ROWS, WINDOW_BLOCKS, WINDOW_ROWS, ShuffleOrder, shuffled

KEY = {"seed": 3, "rank": 1, "epoch": 0}


def whole(rows: int, **key: int) -> npt.NDArray[np.int64]:
    return ShuffleOrder(rows, **{**KEY, **key}).numbers(0, rows)


def batches(rows: int, size: int, width: int = 1) -> Iterator[pa.RecordBatch]:
    """Rows numbered from 0, ``width`` times in each, in batches of ``size``."""
    for start in range(0, rows, size):
        ids = np.arange(start, min(rows, start + size))
        yield pa.record_batch(
            {"id": ids, "x": pa.FixedSizeListArray.from_arrays(np.repeat(ids, width), width), "s": map(str, ids)}
        )


def ids_of(stream: Iterator[pa.RecordBatch]) -> list[int]:
    return [number for batch in stream for number in batch["id"].to_pylist()]


@pytest.mark.parametrize(
    "rows", [0, 1, 255, 256, 257, WINDOW_ROWS - 1, WINDOW_ROWS, WINDOW_ROWS + 1, 3 * WINDOW_ROWS + 7]
)
def test_an_order_has_every_row_once_wherever_its_short_block_falls(rows: int) -> None:
    for epoch in range(4):
        assert np.array_equal(np.sort(whole(rows, epoch=epoch)), np.arange(rows))


def test_places_in_any_pieces_give_the_same_order() -> None:
    rows = 2 * WINDOW_ROWS + 300
    expected = whole(rows)
    cuts = np.sort(np.random.default_rng(0).integers(0, rows, 400))
    bounds = [0, *cuts.tolist(), rows]
    order = ShuffleOrder(rows, **KEY)
    pieces = [order.numbers(begin, end) for begin, end in itertools.pairwise(bounds)]
    assert np.array_equal(np.concatenate(pieces), expected)
    assert np.array_equal(order.numbers(100, 200), expected[100:200])
    assert np.array_equal(order.numbers(rows - 5, rows + 5), expected[-5:])


def test_seed_rank_and_epoch_make_the_order_and_nothing_else_does() -> None:
    assert np.array_equal(whole(5000), whole(5000))
    for other in ({"seed": 4}, {"rank": 0}, {"epoch": 1}):
        assert not np.array_equal(whole(5000), whole(5000, **other))


def test_a_window_mixes_rows_of_blocks_from_all_over_and_reads_no_others() -> None:
    rows = 10 * WINDOW_ROWS
    first = whole(rows)[:WINDOW_ROWS]
    blocks = np.unique(first // BLOCK_ROWS)
    assert len(blocks) == WINDOW_BLOCKS
    assert blocks.max() - blocks.min() > 5 * WINDOW_BLOCKS
    assert len(np.unique(first[:128] // BLOCK_ROWS)) > WINDOW_BLOCKS / 2
    assert abs(np.corrcoef(np.arange(WINDOW_ROWS), first)[0, 1]) < 0.05


def test_an_order_of_a_hundred_million_rows_takes_a_few_megabytes() -> None:
    tracemalloc.start()
    order = ShuffleOrder(100_000_000, **KEY)
    order.numbers(50_000_000, 50_000_128)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10e6


def test_threads_that_read_one_order_at_different_places_do_not_disturb_each_other() -> None:
    rows = 4 * WINDOW_ROWS
    expected, order = whole(rows), ShuffleOrder(rows, **KEY)
    wrong: list[int] = []

    def read(start: int) -> None:
        for place in range(start, start + WINDOW_ROWS - 128, 1024):
            if not np.array_equal(order.numbers(place, place + 128), expected[place : place + 128]):
                wrong.append(place)

    threads = [threading.Thread(target=read, args=(window * WINDOW_ROWS,)) for window in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_a_stream_gives_every_row_once_whole_and_in_an_order_that_its_batches_do_not_change() -> None:
    rows = WINDOW_ROWS + 1000
    streams = [list(shuffled(batches(rows, size), **KEY)) for size in (100, 256, 9999)]
    orders = [ids_of(iter(stream)) for stream in streams]
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == list(range(rows))
    assert sorted(orders[0][:WINDOW_ROWS]) == list(range(WINDOW_ROWS))
    assert orders[0][:WINDOW_ROWS] != list(range(WINDOW_ROWS))
    assert max(batch.num_rows for batch in streams[2]) == BLOCK_ROWS
    assert ids_of(shuffled(batches(rows, 100), **{**KEY, "epoch": 1})) != orders[0]
    for batch in streams[0][:3]:
        assert [str(number) for number in batch["id"].to_pylist()] == batch["s"].to_pylist()
        assert batch["x"].to_pylist() == [[number] for number in batch["id"].to_pylist()]


def test_a_stream_of_wide_rows_is_shuffled_in_windows_of_so_many_bytes() -> None:
    order = ids_of(shuffled(batches(2000, 300, width=100), **KEY, window_bytes=400_000))
    assert sorted(order) == list(range(2000))
    assert sorted(order[:512]) == list(range(512))
    assert order == ids_of(shuffled(batches(2000, 77, width=100), **KEY, window_bytes=400_000))


def test_a_stream_is_not_read_further_than_the_window_that_is_given() -> None:
    read = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in batches(4 * WINDOW_ROWS, 128):
            read += batch.num_rows
            yield batch

    stream = shuffled(counted(), **KEY)
    next(stream)
    assert read <= WINDOW_ROWS + 128
