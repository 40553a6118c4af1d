"""Spark's Arrow batches on their way to the wire and to NumPy."""

from __future__ import annotations

import dataclasses
import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tfos_magic.columns.arrow import WireConverter, agree, settle, take_rows
from tfos_magic.columns.columns import Column, FeedPlan, decode_schema, encode_schema, field_column
from tfos_magic.columns.list_lengths import ListLengths
from tfos_magic.columns.numpy_arrays import tensor_arrays
from tfos_magic.errors import DataError, FeedError

X = Column("x", "list", "float32")
GRID = Column("g", "list", "int32", depth=2)


def plan(*columns: Column) -> FeedPlan:
    return FeedPlan(tuple(columns))


def lists(*rows: list[float | None] | None) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(rows, pa.list_(pa.float32()))})


def grids(*rows: Any) -> pa.RecordBatch:
    return pa.record_batch({"g": pa.array(rows, pa.list_(pa.list_(pa.int32())))})


def flats(given: FeedPlan, *batches: pa.RecordBatch) -> list[Any]:
    """All rows of the batches as flat arrays, the way of a feed: through the wire, slices, a take, and the schema."""
    converter = WireConverter(given)
    wire = pa.concat_batches([converter.convert(batch) for batch in batches])
    schema = decode_schema(encode_schema(settle(converter.schema, ListLengths.from_json(converter.widths.to_json()))))
    there = wire.take(pa.array(range(wire.num_rows)))
    block = pa.concat_batches([there.slice(0, 1), there.slice(1)])
    return tensor_arrays(pa.ipc.read_record_batch(block.serialize(), schema))


def shape_of(given: FeedPlan, *batches: pa.RecordBatch) -> tuple[int | None, ...] | None:
    converter = WireConverter(given)
    for batch in batches:
        converter.convert(batch)
    return field_column(settle(converter.schema, converter.widths).field(0)).shape


def test_every_kind_of_column_comes_back_as_the_numpy_array_it_was() -> None:
    columns = plan(
        Column("f", "list", "float64"),
        Column("flags", "list", "bool"),
        Column("flag", "scalar", "bool"),
        Column("i", "scalar", "int16"),
        Column("s", "bytes", "bytes"),
        Column("b", "bytes", "bytes"),
        Column("words", "list", "bytes"),
    )
    batch = pa.record_batch(
        {
            "f": pa.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]),
            "flags": pa.array([[True, False], [False, False], [True, True]]),
            "flag": pa.array([True, False, True]),
            "i": pa.array([1, -2, 3], pa.int16()),
            "s": pa.array(["ä", "", "c"], pa.large_string()),
            "b": pa.array([b"\x00", b"\xff", b""]),
            "words": pa.array([["a", "b"], ["", "ö"], ["c", "d"]]),
        }
    )
    views = flats(columns, batch.slice(1))
    np.testing.assert_array_equal(views[0], [[2.0, 3.0], [4.0, 5.0]])
    np.testing.assert_array_equal(views[1], np.array([[False, False], [True, True]]))
    np.testing.assert_array_equal(views[2], np.array([False, True]))
    np.testing.assert_array_equal(views[3], np.array([-2, 3], np.int16))
    assert [view.dtype for view in views[:4]] == [np.float64, np.bool_, np.bool_, np.int16]
    assert views[4].tolist() == [b"", b"c"]
    assert views[5].tolist() == [b"\xff", b""]
    assert views[6].tolist() == [[b"", "ö".encode()], [b"c", b"d"]]


def test_numbers_of_lists_are_not_copied_on_either_way() -> None:
    batch = lists([1.0, 2.0], [3.0, 4.0])
    converter = WireConverter(plan(X))
    wire = converter.convert(batch)
    address = batch.column(0).values.buffers()[1].address
    assert wire.column(0).values.buffers()[1].address == address
    settled = pa.RecordBatch.from_arrays(wire.columns, schema=settle(wire.schema, converter.widths))
    (array,) = tensor_arrays(settled.slice(1))
    assert array.__array_interface__["data"][0] == address + 8


def test_lists_are_dense_where_all_have_one_length_and_ragged_where_they_differ() -> None:
    (dense,) = flats(plan(X), lists([1.0, 2.0]), lists([3.0, 4.0], [5.0, 6.0]))
    assert dense.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    values, splits = flats(plan(X), lists([1.0, 2.0]), lists([3.0], [], [4.0]))
    assert (values.tolist(), splits.tolist(), splits.dtype) == ([1.0, 2.0, 3.0, 4.0], [0, 2, 3, 3, 4], np.int64)


def test_nested_lists_are_dense_inside_the_levels_that_differ() -> None:
    pair, triple = [[1, 2], [3, 4]], [[5, 6], [7, 8], [9, 0]]
    (dense,) = flats(plan(GRID), grids(pair, pair))
    assert dense.tolist() == [pair, pair]
    values, splits = flats(plan(GRID), grids(pair, triple))
    assert (values.tolist(), splits.tolist()) == ([*pair, *triple], [0, 2, 5])
    assert shape_of(plan(GRID), grids(pair, triple)) == (None, 2)
    values, outer, inner = flats(plan(GRID), grids([[1], [2, 3]], [[], [4]]))
    assert (values.tolist(), outer.tolist(), inner.tolist()) == ([1, 2, 3, 4], [0, 2, 4], [0, 1, 3, 3, 4])
    assert shape_of(plan(GRID), grids([[1], [2, 3]], [[], [4]])) == (2, None)


def test_padding_makes_lists_as_long_as_the_longest_or_as_asked() -> None:
    longest = plan(dataclasses.replace(X, pad="-1"))
    (array,) = flats(longest, lists([1.0]), lists([2.0, 3.0, 4.0], []))
    assert array.tolist() == [[1, -1, -1], [2, 3, 4], [-1, -1, -1]]
    assert array.dtype == np.float32
    asked = plan(dataclasses.replace(GRID, pad="0", pad_to=(2, 3)))
    (array,) = flats(asked, grids([[1, 2]], [[3], [4, 5]]))
    assert array.tolist() == [[[1, 2, 0], [0, 0, 0]], [[3, 0, 0], [4, 5, 0]]]
    words = plan(Column("x", "list", "bytes", pad="<end>"))
    (array,) = flats(words, pa.record_batch({"x": [["a"], ["b", "c"]]}))
    assert array.tolist() == [[b"a", b"<end>"], [b"b", b"c"]]


def test_a_list_longer_than_it_is_padded_to_is_refused() -> None:
    with pytest.raises(DataError, match=r"'x' has an array of 3 values, and --pad makes them 2.*F\.slice\('x', 1, 2\)"):
        flats(plan(dataclasses.replace(X, pad="0", pad_to=(2,))), lists([1.0] * 3))


def test_what_is_settled_holds_for_later_batches() -> None:
    first = WireConverter(plan(X))
    first.convert(lists([1.0, 2.0]))
    settled = settle(first.schema, first.widths)
    later = WireConverter(plan(X), settled)
    assert later.convert(lists([3.0, 4.0])).schema == settled
    with pytest.raises(DataError, match=r"'x' has arrays of 3 values, and the first rows had 2: .*--pad x=0:LENGTH"):
        later.convert(lists([1.0] * 3))


def test_later_lists_may_be_shorter_than_padding_has_made_the_first_but_not_longer() -> None:
    padded = plan(dataclasses.replace(X, pad="0"))
    first = WireConverter(padded)
    first.convert(lists([1.0, 2.0]))
    later = WireConverter(padded, settle(first.schema, first.widths))
    assert later.convert(lists([3.0, 4.0], [])).num_rows == 2
    with pytest.raises(DataError, match="'x' has an array of 3 values, and --pad makes them 2 long"):
        later.convert(lists([1.0] * 3))


def test_a_later_list_that_is_shorter_is_refused_where_nothing_fills_it_up() -> None:
    """The longest being as long as the first is not enough: the short one would get zeros."""
    first = WireConverter(plan(X))
    first.convert(lists([1.0, 2.0]))
    later = WireConverter(plan(X), settle(first.schema, first.widths))
    assert later.convert(lists([3.0, 4.0])).num_rows == 1
    with pytest.raises(DataError, match=r"'x' has arrays of 1 values, and the first rows had 2: .* --pad x=0:LENGTH"):
        later.convert(lists([5.0], [6.0, 7.0]))


def test_structs_give_their_fields_one_after_another() -> None:
    column = Column(
        "s",
        "struct",
        fields=(Column("a", "scalar", "int64"), Column("in", "struct", fields=(X, Column("t", "bytes", "bytes")))),
    )
    batch = pa.record_batch({"s": [{"a": i, "in": {"x": [float(i)] * 2, "t": f"t{i}"}} for i in range(4)]})
    batch = batch.cast(
        pa.schema(
            [
                (
                    "s",
                    pa.struct(
                        [("a", pa.int64()), ("in", pa.struct([("x", pa.list_(pa.float32())), ("t", pa.string())]))]
                    ),
                )
            ]
        )
    )
    a, x, t = flats(plan(column), batch.slice(1))
    assert (a.tolist(), x.tolist(), t.tolist()) == ([1, 2, 3], [[1, 1], [2, 2], [3, 3]], [b"t1", b"t2", b"t3"])


def vectors(*rows: Any) -> pa.RecordBatch:
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    return pa.record_batch({"v": pa.array(rows, kind)})


def dense(*values: float) -> dict[str, Any]:
    return {"type": 1, "size": None, "indices": None, "values": values}


def sparse(size: int, **values: float) -> dict[str, Any]:
    return {"type": 0, "size": size, "indices": [int(at[1:]) for at in values], "values": list(values.values())}


def test_vectors_dense_and_sparse_become_rows_of_float64() -> None:
    column = plan(Column("v", "vector", "float64"))
    batch = vectors(dense(9, 9, 9), sparse(3, _1=2.0), dense(1, 2, 3), sparse(3), sparse(3, _0=4.0, _2=5.0))
    (array,) = flats(column, batch.slice(1))
    assert array.tolist() == [[0, 2, 0], [1, 2, 3], [0, 0, 0], [4, 0, 5]]
    assert array.dtype == np.float64
    values, splits = flats(column, vectors(sparse(2, _1=1.0), dense(3)))
    assert (values.tolist(), splits.tolist()) == ([0, 1, 3], [0, 2, 3])
    with pytest.raises(DataError, match="'v' has nulls"):
        flats(column, vectors(dense(1), None))
    filled = plan(Column("v", "vector", "float64", fill="-1"))
    assert flats(filled, vectors(None, sparse(2, _1=1.0), dense(3, 4)))[0].tolist() == [[-1, -1], [0, 1], [3, 4]]


def test_decimals_dates_and_times_become_numbers() -> None:
    when = datetime.datetime(2020, 1, 2, 3, 4, 5, 678901, datetime.timezone.utc)
    columns = plan(
        Column("dec", "scalar", "float64"),
        Column("day", "scalar", "int64", unit="days"),
        Column("at", "scalar", "int64", unit="microseconds"),
        Column("days", "list", "int64", unit="days"),
    )
    amounts = [Decimal(n).scaleb(-2) for n in range(-(10**15) + 7, 10**15, 10**12 + 12345)]
    rows = len(amounts)
    batch = pa.record_batch(
        {
            "dec": pa.array(amounts, pa.decimal128(18, 2)),
            "day": pa.array([datetime.date(1969, 12, 31)] * rows),
            "at": pa.array([when] * rows, pa.timestamp("us", "America/New_York")),
            "days": pa.array([[datetime.date(1970, 1, 2)]] * rows),
        }
    )
    dec, day, at, days = flats(columns, batch)
    assert dec.tolist() == [float(amount) for amount in amounts]
    assert (day[0], day.dtype) == (-1, np.int64)
    assert at[0] == int(when.timestamp()) * 1_000_000 + 678901
    assert days[0].tolist() == [1]


@pytest.mark.parametrize("rows", [([1.0], None), ([1.0], [None])])
def test_a_null_is_refused_by_the_name_of_its_column(rows: tuple[list[float | None] | None, ...]) -> None:
    with pytest.raises(DataError, match=r"column 'x' has nulls.*\(1 of the .*--fill x=VALUE.*dropna"):
        WireConverter(plan(X)).convert(lists(*rows))


def test_a_null_in_a_number_a_string_or_a_struct_is_refused() -> None:
    columns = (Column("x", "scalar", "int64"), Column("s", "bytes", "bytes"))
    for x, s, name in (([1, None], ["a", "b"], "x"), ([1, 2], ["a", None], "s")):
        with pytest.raises(DataError, match=f"column '{name}' has nulls"):
            WireConverter(plan(*columns)).convert(pa.record_batch({"x": x, "s": s}))
    struct = plan(Column("t", "struct", fields=columns))
    with pytest.raises(DataError, match=r"column 't\.x' has nulls"):
        WireConverter(struct).convert(pa.record_batch({"t": [{"x": 1, "s": "a"}, None]}))


def test_nulls_are_filled_in_numbers_strings_lists_and_structs() -> None:
    columns = plan(
        Column("i", "scalar", "int32", fill="-7"),
        Column("b", "scalar", "bool", fill="true"),
        Column("s", "bytes", "bytes", fill="none"),
        Column("x", "list", "float32", fill="9"),
        Column("t", "struct", fields=(Column("a", "scalar", "float64", fill="nan"),)),
        Column("day", "scalar", "int64", unit="days", fill="0"),
    )
    batch = pa.record_batch(
        {
            "i": pa.array([1, None, 3], pa.int32()),
            "b": [None, False, None],
            "s": ["a", None, "c"],
            "x": pa.array([[1, None], [3, 4], None], pa.list_(pa.float32())),
            "t": [{"a": 1.0}, None, {"a": None}],
            "day": pa.array([None, 5, None], pa.date32()),
        }
    )
    i, b, s, x, t, day = flats(columns, batch)
    assert i.tolist() == [1, -7, 3]
    assert b.tolist() == [True, False, True]
    assert s.tolist() == [b"a", b"none", b"c"]
    assert x.tolist() == [[1, 9], [3, 4], [9, 9]]
    np.testing.assert_array_equal(t, [1.0, np.nan, np.nan])
    assert day.tolist() == [0, 5, 0]


def test_a_null_list_among_lists_of_differing_lengths_is_an_empty_one() -> None:
    values, splits = flats(plan(dataclasses.replace(X, fill="9")), lists([1.0, 2.0], None, [3.0]))
    assert (values.tolist(), splits.tolist()) == ([1, 2, 3], [0, 2, 2, 3])


def test_what_lies_under_a_null_list_does_not_count() -> None:
    array = pa.ListArray.from_arrays(
        pa.array([0, 2, 5, 6]), pa.array([1.0, 2, 8, 8, 8, 3], pa.float32()), mask=pa.array([False, True, False])
    )
    values, splits = flats(plan(dataclasses.replace(X, fill="9")), pa.record_batch({"x": array}))
    assert (values.tolist(), splits.tolist()) == ([1, 2, 3], [0, 2, 2, 3])


def test_a_slice_of_ragged_rows_has_splits_of_its_own() -> None:
    converter = WireConverter(plan(X))
    wire = converter.convert(lists([1.0], [2.0, 3.0], [4.0]))
    settled = pa.RecordBatch.from_arrays(wire.columns, schema=settle(wire.schema, converter.widths))
    values, splits = tensor_arrays(settled.slice(1))
    assert (values.tolist(), splits.tolist()) == ([2, 3, 4], [0, 2, 3])
    values, splits = tensor_arrays(settled.slice(3))
    assert (values.tolist(), splits.tolist()) == ([], [0])


def test_a_mask_tells_where_values_were_and_nulls_are_zeros_then() -> None:
    columns = plan(dataclasses.replace(X, masked=True), Column("s", "bytes", "bytes", masked=True))
    assert columns.names == ["x", "x_mask", "s", "s_mask"]
    assert columns.sources == ["x", "s"]
    x, x_mask, s, s_mask = flats(columns, pa.record_batch({"x": lists([1, 2], None).column(0), "s": [None, "a"]}))
    assert (x.tolist(), x_mask.tolist()) == ([[1, 2], [0, 0]], [True, False])
    assert (s.tolist(), s_mask.tolist(), s_mask.dtype) == ([b"", b"a"], [False, True], np.bool_)
    with pytest.raises(DataError, match="inside its arrays"):
        flats(columns, pa.record_batch({"x": lists([1, None]).column(0), "s": ["a"]}))


@pytest.mark.parametrize(("rows", "said"), [(([], []), "empty arrays"), ((None,), "null arrays")])
def test_columns_of_nothing_but_empty_arrays_are_refused(rows: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"'x' has nothing but {said}"):
        flats(plan(dataclasses.replace(X, fill="0")), lists(*rows))


def test_a_type_that_changed_since_planning_is_refused() -> None:
    with pytest.raises(FeedError, match="came as double"):
        WireConverter(plan(X)).convert(pa.record_batch({"x": pa.array([[1.0]], pa.list_(pa.float64()))}))
    with pytest.raises(FeedError, match="not an array"):
        WireConverter(plan(X)).convert(pa.record_batch({"x": [1.0]}))


def test_all_batches_of_a_feed_have_one_schema() -> None:
    planned = decode_schema(plan(X).schema)
    wide = WireConverter(plan(X)).convert(lists([1.0] * 5)).schema
    assert agree(planned, None, wide) == planned
    with pytest.raises(FeedError, match="other ones came"):
        agree(planned, None, pa.schema([("y", pa.int64())]))
    with pytest.raises(FeedError, match="other ones came"):
        agree(planned, None, pa.schema([("x", pa.int64())]))


@pytest.mark.parametrize(
    "rows", [[[1, 2]] * 5, [[1], [], [2, 3], [4], [5]], [[[1, 2], [3, 4]]] * 5, [[[1], []], [[2, 3]], [], [[4]], [[5]]]]
)
def test_rows_are_taken_as_arrow_takes_them(rows: list[Any]) -> None:
    batch = pa.record_batch({"a": pa.array(rows), "b": ["v", "w", "x", "y", "z"]})
    for cut in (batch, batch.slice(1, 3), batch.slice(5)):
        numbers = np.arange(0, cut.num_rows, 2)[::-1]
        taken = take_rows(cut, numbers)
        taken.validate(full=True)
        assert taken.equals(cut.take(pa.array(numbers)))


def test_a_block_whose_shape_is_not_known_yet_gives_no_tensors() -> None:
    with pytest.raises(FeedError, match="'x' is not settled"):
        tensor_arrays(WireConverter(plan(X)).convert(lists([1.0])))
