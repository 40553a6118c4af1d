"""Spark's Arrow batches on their way to the wire and to NumPy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tfos_magic.errors import DataError, FeedError
from tfos_magic.records.arrow import WireConverter, agree, column_values, field_dtype
from tfos_magic.records.columns import Column, FeedPlan, decode_schema

LISTS = FeedPlan((Column("x", "list", "float32"),))


def lists(*rows: list[float] | None) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(rows, pa.list_(pa.float32()))})


def test_every_kind_of_column_comes_back_as_the_numpy_array_it_was() -> None:
    plan = FeedPlan(
        (
            Column("f", "list", "float64"),
            Column("flags", "list", "bool"),
            Column("flag", "scalar", "bool"),
            Column("i", "scalar", "int16"),
            Column("s", "bytes", "bytes"),
            Column("b", "bytes", "bytes"),
        )
    )
    batch = pa.record_batch(
        {
            "f": pa.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]),
            "flags": pa.array([[True, False], [False, False], [True, True]]),
            "flag": pa.array([True, False, True]),
            "i": pa.array([1, -2, 3], pa.int16()),
            "s": pa.array(["ä", "", "c"], pa.large_string()),
            "b": pa.array([b"\x00", b"\xff", b""]),
        }
    )
    wire = WireConverter(plan).convert(batch.slice(1))
    views = [column_values(array, field_dtype(field)) for field, array in zip(wire.schema, wire.columns, strict=True)]
    np.testing.assert_array_equal(views[0], [[2.0, 3.0], [4.0, 5.0]])
    np.testing.assert_array_equal(views[1], np.array([[False, False], [True, True]]))
    np.testing.assert_array_equal(views[2], np.array([False, True]))
    np.testing.assert_array_equal(views[3], np.array([-2, 3], np.int16))
    assert [view.dtype for view in views[:4]] == [np.float64, np.bool_, np.bool_, np.int16]
    assert views[4].to_pylist() == [b"", b"c"]
    assert views[5].to_pylist() == [b"\xff", b""]


def test_a_float_list_is_not_copied() -> None:
    batch = lists([1.0, 2.0], [3.0, 4.0])
    wire = WireConverter(LISTS).convert(batch)
    assert wire.column(0).flatten().buffers()[1].address == batch.column(0).values.buffers()[1].address


@pytest.mark.parametrize("rows", [([1.0], None), ([1.0], [None])])
def test_a_null_is_refused_by_the_name_of_its_column(rows: tuple[list[float] | None, ...]) -> None:
    with pytest.raises(DataError, match=r"column 'x' has nulls.*dropna"):
        WireConverter(LISTS).convert(lists(*rows))


def test_a_null_in_a_number_or_a_string_is_refused() -> None:
    plan = FeedPlan((Column("x", "scalar", "int64"), Column("s", "bytes", "bytes")))
    for x, s, name in (([1, None], ["a", "b"], "x"), ([1, 2], ["a", None], "s")):
        with pytest.raises(DataError, match=f"column '{name}' has nulls"):
            WireConverter(plan).convert(pa.record_batch({"x": x, "s": s}))


def test_ragged_lists_are_refused_within_a_batch_and_across_batches() -> None:
    with pytest.raises(DataError, match="'x' has rows of 3 and 5 values: pad"):
        WireConverter(LISTS).convert(lists([1.0] * 5, [1.0] * 3))
    converter = WireConverter(LISTS)
    converter.convert(lists([1.0] * 5))
    with pytest.raises(DataError, match="'x' has rows of 3 and 5 values: pad"):
        converter.convert(lists([1.0] * 3))


def test_empty_arrays_are_refused() -> None:
    with pytest.raises(DataError, match="'x' has empty arrays"):
        WireConverter(LISTS).convert(lists([], []))


def test_a_type_that_changed_since_planning_is_refused() -> None:
    with pytest.raises(FeedError, match="came as double"):
        WireConverter(LISTS).convert(pa.record_batch({"x": pa.array([[1.0]], pa.list_(pa.float64()))}))


def test_partitions_must_agree_on_widths_and_columns() -> None:
    planned = decode_schema(LISTS.schema)
    three, five = (WireConverter(LISTS).convert(lists([1.0] * width)).schema for width in (3, 5))
    assert agree(planned, None, three) == three
    assert agree(planned, three, three) == three
    with pytest.raises(DataError, match="'x' has rows of 3 and 5 values"):
        agree(planned, three, five)
    with pytest.raises(FeedError, match="other ones came"):
        agree(planned, three, pa.schema([("y", pa.int64())]))
    with pytest.raises(FeedError, match="other ones came"):
        agree(planned, None, pa.schema([("x", pa.int64())]))
