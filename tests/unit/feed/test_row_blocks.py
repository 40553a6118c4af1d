"""Rows come back as they were sent; those of Arrow batches as tuples, in which lists are arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tfos_magic.feed.row_blocks import decode_rows, encode_batch, encode_rows


def same(one: Any, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(other, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and type(one) is type(other)


@pytest.mark.parametrize(
    "rows",
    [
        [1, 2.5, "text", None],
        [([1, 2], 3), ([4], 5)],
        [(np.arange(3), 1), (np.arange(3) + 1, 2)],
        [[np.zeros((2, 2), "float32"), "a"], [np.ones((2, 2), "float32"), "b"]],
        [np.arange(4), np.arange(4) * 2],
        [np.arange(4), np.arange(3)],
        [(np.arange(2), 1), (np.arange(3), 2)],
        [(np.arange(2, dtype="int32"), 1), (np.arange(2, dtype="int64"), 2)],
        [(np.arange(2), 1), (np.arange(2), 2, 3)],
        [{"a": 1}, {"a": lambda: 2}][:1],
    ],
)
def test_rows_come_back_as_they_were(rows: list[Any]) -> None:
    assert same(decode_rows(encode_rows(rows)), rows)


def test_functions_travel_by_value() -> None:
    (made,) = decode_rows(encode_rows([lambda number: number + 1]))
    assert made(1) == 2


def test_rows_of_an_arrow_batch_are_tuples_with_arrays() -> None:
    batch = pa.record_batch(
        {
            "even": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())),
            "uneven": pa.array([[1], [2, 3]], pa.list_(pa.int64())),
            "nulls": pa.array([[1], None], pa.list_(pa.int64())),
            "text": ["a", "b"],
        }
    )
    expected = [
        (np.array([1, 2], "float32"), np.array([1]), [1], "a"),
        (np.array([3, 4], "float32"), np.array([2, 3]), None, "b"),
    ]
    assert same(decode_rows(encode_batch(batch)), expected)
    assert same(decode_rows(encode_batch(batch.slice(1))), expected[1:])


def test_masks_of_arrays_travel() -> None:
    rows = [np.ma.array([1.0, 2.0], mask=[True, False]), np.ma.array([3.0, 4.0], mask=[False, True])]
    for sent in (rows, [(row, 1) for row in rows]):
        came = [row[0] if isinstance(row, tuple) else row for row in decode_rows(encode_rows(sent))]
        assert [row.mask.tolist() for row in came] == [[True, False], [False, True]]
