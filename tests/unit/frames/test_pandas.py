"""Tensor functions over pandas DataFrames: the same tasks as on Spark, run in this process."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

import tfos_magic.frames as tfs
from tfos_magic.errors import CaptureError, DataError, UsageError
from tfos_magic.frames.arrow_blocks import to_numpy
from tfos_magic.frames.specs import ColumnSpec

pytestmark = pytest.mark.slow

NUMBERS = pd.DataFrame({"x": np.arange(10.0)})


def total(x_input: Any) -> dict[str, Any]:
    return {"x": tf.reduce_sum(x_input, axis=0)}


@pytest.mark.parametrize("block_rows", [None, 1, 3, 10, 64])
def test_blocks_and_rows_of_any_size_give_the_same(block_rows: int | None) -> None:
    for mapped in (tfs.map_blocks, tfs.map_rows):
        made = mapped(lambda x: {"z": x + 3}, NUMBERS, block_rows=block_rows)
        assert made["z"].tolist() == list(range(3, 13))
        assert made["x"].tolist() == list(range(10))


@pytest.mark.parametrize("block_rows", [None, 1, 2, 3, 4, 64])
def test_reductions_of_any_block_size_give_the_same(block_rows: int | None) -> None:
    few = NUMBERS[:5]
    assert tfs.reduce_blocks(total, few, block_rows=block_rows) == 10
    assert tfs.reduce_rows(lambda x_1, x_2: {"x": x_1 + x_2}, few, block_rows=block_rows) == 10


def test_vectors_are_reduced_to_vectors() -> None:
    frame = pd.DataFrame({"y": [[float(i), -float(i)] for i in range(10)]})
    added = tfs.reduce_blocks(lambda y_input: {"y": tf.reduce_sum(y_input, 0)}, frame)
    least = tfs.reduce_rows(lambda y_1, y_2: {"y": tf.minimum(y_1, y_2)}, frame)
    np.testing.assert_array_equal(added, [45, -45])
    np.testing.assert_array_equal(least, [0, -9])


def test_groups_of_pandas_are_aggregated_by_their_keys() -> None:
    frame = pd.DataFrame({"k": [1, 0, 1, 0, 1], "s": ["a", "a", "b", "a", None], "x": np.arange(5.0)})
    total = lambda x_input: {"x": tf.reduce_sum(x_input, axis=0)}  # noqa: E731 - as users write it
    assert tfs.aggregate(total, frame.groupby("k")).to_dict("list") == {"k": [0, 1], "x": [4.0, 6.0]}
    made = tfs.aggregate(total, frame.groupby(["k", "s"], dropna=False))
    expected = frame.groupby(["k", "s"], dropna=False)["x"].sum().reset_index()
    pd.testing.assert_frame_equal(made.fillna("-"), expected.fillna("-"))
    with pytest.raises(DataError, match=r"key 's' has missing values.*dropna=False"):
        tfs.aggregate(total, frame.groupby(["k", "s"]))
    assert tfs.aggregate(total, frame[:0].groupby("k")).to_dict("list") == {"k": [], "x": []}
    with pytest.raises(UsageError, match="by columns that it has"):
        tfs.aggregate(total, frame.groupby(frame["x"] % 2))
    with pytest.raises(UsageError, match="'x' is the name of a group key"):
        tfs.aggregate(total, frame.groupby("x"))


def test_keys_that_are_nan_are_one_group_and_so_are_zeros_of_both_signs_as_in_spark() -> None:
    frame = pd.DataFrame({"k": [0.0, -0.0, 0.0, np.nan, np.nan], "x": [1.0, 2.0, 4.0, 8.0, 16.0]})
    made = tfs.aggregate(total, frame.groupby("k", dropna=False))
    assert made["x"].tolist() == [7.0, 24.0]
    assert made["k"].isna().tolist() == [False, True]


def test_nan_is_a_value_and_what_is_missing_otherwise_is_null_as_in_spark() -> None:
    frame = pd.DataFrame({"x": [1.0, np.nan], "v": [np.array([1.0, np.nan]), np.array([3.0, 4.0])]})
    made = tfs.map_blocks(lambda x, v: {"z": tf.math.is_nan(x), "n": tf.reduce_any(tf.math.is_nan(v), 1)}, frame)
    assert made[["z", "n"]].to_numpy().tolist() == [[False, True], [True, False]]
    for missing in (
        pd.array([1, None], "Int64"),
        pd.array([1.0, None], "Float64"),
        pd.Series([1.0, None], dtype=object),
    ):
        with pytest.raises(DataError, match="column 'x' has nulls"):
            tfs.map_blocks(lambda x: {"z": x}, pd.DataFrame({"x": missing}))


def test_a_frame_keeps_its_index_and_columns_and_a_trimmed_one_has_a_new_index() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "o": [{1}, object]}, index=pd.Index(["b", "a"], name="row"))
    for mapped in (tfs.map_blocks, tfs.map_rows):
        made = mapped(lambda x: {"z": x + 3}, frame)
        pd.testing.assert_frame_equal(made, frame.assign(z=[4.0, 5.0]))
        assert mapped(lambda x: {"z": x + 3}, frame, trim=True).index.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_python_numbers_among_the_constants_have_the_width_of_the_columns(dtype: str) -> None:
    made = tfs.map_blocks(
        lambda x, half, list_, count: {
            "a": x * half,
            "b": x + list_[1],
            "c": x * count,
            "d": x * 0 + tf.cast(half, x.dtype),
        },
        pd.DataFrame({"x": np.array([1.0, 3.0], dtype)}),
        constants={"half": 0.1, "list_": [0.1, 0.2], "count": 3},
    )
    tenth, x = np.dtype(dtype).type(0.1), np.array([1, 3], dtype)
    assert made.dtypes.astype(str).tolist() == [dtype] * 5
    np.testing.assert_array_equal(made["a"], x * tenth)
    np.testing.assert_array_equal(made["b"], x + np.dtype(dtype).type(0.2))
    np.testing.assert_array_equal(made["c"], x * 3)
    np.testing.assert_array_equal(made["d"], [float(tenth)] * 2)


def test_several_outputs_come_back_by_name() -> None:
    made = tfs.reduce_rows(
        lambda low_1, low_2, high_1, high_2: {"low": tf.minimum(low_1, low_2), "high": tf.maximum(high_1, high_2)},
        NUMBERS,
        feed_dict={"low": "x", "high": "x"},
    )
    assert made == {"low": 0.0, "high": 9.0}


def test_rows_of_different_lengths_keep_their_places() -> None:
    frame = pd.DataFrame({"v": [[1.0], [2.0, 2.1], [], [3.0]]})
    made = tfs.map_rows(lambda v: {"same": v, "sum": tf.reduce_sum(v), "n": tf.size(v)}, frame)
    assert [list(v) for v in made["same"]] == [[1.0], [2.0, 2.1], [], [3.0]]
    assert made["sum"].tolist() == [1.0, 4.1, 0.0, 3.0]
    assert made["n"].tolist() == [1, 2, 0, 1]


def test_rows_of_matrices_of_different_shapes_keep_their_places() -> None:
    rng = np.random.default_rng(1)
    shapes = [(2, 3), (1, 2), (2, 3), (3, 2)]
    cells = [rng.normal(size=shape) for shape in shapes]
    frame = pd.DataFrame({"m": [[list(row) for row in cell] for cell in cells]})
    made = tfs.map_rows(lambda m: {"t": tf.transpose(m)}, frame)
    for got, cell in zip(made["t"], cells, strict=True):
        np.testing.assert_array_equal(np.array([list(row) for row in got]), cell.T)


def test_trimming_gives_one_row_for_each_block_or_more_rows_than_came_in() -> None:
    sums = tfs.map_blocks(lambda x: {"s": tf.reduce_sum(x, keepdims=True)}, NUMBERS, trim=True, block_rows=4)
    assert sums.to_dict("list") == {"s": [6.0, 22.0, 17.0]}
    twice = tfs.map_blocks(lambda x: {"t": tf.repeat(x, 2)}, NUMBERS[:2], trim=True)
    assert twice.to_dict("list") == {"t": [0.0, 0.0, 1.0, 1.0]}


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_every_dtype_is_seen_as_it_is_and_comes_back(dtype: str) -> None:
    def same(x: Any) -> dict[str, Any]:
        return {"y": x, "list": tf.stack([x, x], 1), "seen": tf.fill(tf.shape(x), x.dtype.name)}

    frame = pd.DataFrame({"x": np.array([0, 1, 1, 0], dtype)})
    made = tfs.map_blocks(same, frame, block_rows=3)
    assert set(made["seen"]) == {dtype}
    assert made["y"].tolist() == [0, 1, 1, 0]
    assert [list(pair) for pair in made["list"]] == [[0, 0], [1, 1], [1, 1], [0, 0]]


def test_text_and_binary_pass_through_functions() -> None:
    frame = pd.DataFrame({"s": ["ä", "", "long\x00er"], "b": [b"\x00\xff", b"", b"c"]})
    upper = tfs.map_blocks(lambda s: {"n": tf.strings.length(s, "UTF8_CHAR"), "t": tf.strings.join([s, "!"])}, frame)
    assert upper["n"].tolist() == [1, 0, 7]
    assert upper["t"].tolist() == ["ä!", "!", "long\x00er!"]
    assert tfs.map_rows(lambda b: {"c": b}, frame)["c"].tolist() == [b"\x00\xff", b"", b"c"]


def test_feeds_constants_and_defaults_bind_parameters() -> None:
    made = tfs.map_blocks(
        lambda a, weights, power=2.0: {"z": tf.reduce_sum(a[:, None] ** power * weights, 1)},
        NUMBERS,
        feed_dict={"a": "x"},
        constants={"weights": np.array([1.0, 2.0])},
    )
    assert made["z"].tolist() == [3.0 * i * i for i in range(10)]


def test_functions_close_over_arrays_variables_and_keras_models() -> None:
    import keras

    array, variable = np.array([2.0, 3.0]), tf.Variable([1.0, 1.0], dtype=tf.float64)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    frame = pd.DataFrame({"x": [[1.0, 2.0], [3.0, 4.0]]})
    made = tfs.map_blocks(lambda x: {"z": x * array + variable, "p": model(tf.cast(x, tf.float32))}, frame)
    assert [list(z) for z in made["z"]] == [[3.0, 7.0], [7.0, 13.0]]
    np.testing.assert_allclose(np.stack(list(made["p"])), model(np.array([[1.0, 2.0], [3.0, 4.0]])), rtol=1e-6)


def test_xla_and_plain_graphs_agree() -> None:
    frame = pd.DataFrame({"x": np.linspace(-2, 2, 1000)})
    by_xla, plain = (
        tfs.map_blocks(lambda x: {"z": tf.exp(-x * x) * tf.sin(x) + 1.0}, frame, xla=xla, block_rows=256)["z"]
        for xla in (True, False)
    )
    np.testing.assert_allclose(by_xla, plain, rtol=1e-14)


def test_what_xla_cannot_compile_runs_all_the_same() -> None:
    made = tfs.map_blocks(lambda x: {"s": tf.strings.as_string(tf.cast(x, tf.int64))}, NUMBERS, xla=True, block_rows=2)
    assert made["s"].tolist() == [str(i) for i in range(10)]


def test_an_error_in_a_graph_is_told_in_a_line_without_its_call_stack() -> None:
    message = (
        r"^the function failed: Input to reshape is a tensor with 10 values, .* 30 \(on a block of x: float64\[\?\]\)$"
    )
    with pytest.raises(UsageError, match=message):
        tfs.map_blocks(lambda x: {"z": tf.reshape(x, [tf.shape(x)[0], 3])}, NUMBERS)


def test_an_assertion_in_a_function_holds_by_default() -> None:
    def checked(x: Any) -> dict[str, Any]:
        tf.debugging.assert_less(x, tf.constant(5.0, tf.float64))
        return {"z": tf.exp(x) + tf.sin(x) * 2.0}

    with pytest.raises(UsageError, match=r"^the function failed: assertion failed: .*\(on a block of x: float64"):
        tfs.map_blocks(checked, NUMBERS, block_rows=2)


def test_an_empty_frame_maps_to_an_empty_one_and_has_nothing_to_reduce() -> None:
    empty = NUMBERS[:0]
    assert list(tfs.map_blocks(lambda x: {"z": x}, empty).columns) == ["x", "z"]
    with pytest.raises(DataError, match="no rows to reduce"):
        tfs.reduce_blocks(total, empty)


def test_dates_decimals_and_categories_are_what_they_are_in_a_feed() -> None:
    day, microseconds = 18262, 18262 * 86_400_000_000
    frame = pd.DataFrame(
        {
            "d": [datetime.date(2020, 1, 1), datetime.date(1970, 1, 2)],
            "t": pd.to_datetime(["2020-01-01", "1970-01-01"]),
            "m": [decimal.Decimal("1.25"), decimal.Decimal("-0.10")],
            "c": pd.Categorical(["left", "right"]),
            "v": [[datetime.date(1970, 1, 3)], [datetime.date(2020, 1, 1)]],
        }
    )
    made = tfs.map_blocks(
        lambda d, t, m, c, v: {"e": d + 1, "u": t + 1, "n": 2 * m, "s": tf.strings.length(c), "k": v[:, 0]}, frame
    )
    assert made[["e", "u", "n", "s", "k"]].to_numpy().tolist() == [
        [day + 1, microseconds + 1, 2.5, 4, 2],
        [2, 1, -0.2, 5, day],
    ]


def test_explain_shows_dtypes_and_shapes() -> None:
    frame = pd.DataFrame({"x": [1.0], "v": [[1, 2]], "d": [{"a": 1}]})
    assert tfs.explain(frame).splitlines()[:3] == ["root", " |-- x: float64[?]", " |-- v: int64[?,?]"]
    assert "d: no tensor" in tfs.explain(frame)


MAPPING_ERRORS = {
    "column missing": (lambda y: {"z": y}, {}, DataError, "no column 'y'"),
    "dtype mismatch": (lambda x: {"z": x + tf.constant(1, tf.int32)}, {}, UsageError, "int32.*x: float64"),
    "output is a column": (lambda x: {"X": x}, {}, UsageError, "'X' is the name of a column"),
    "output twice": (lambda x: [("z", x), ("Z", x)], {}, UsageError, "the output 'Z' twice"),
    "no names": (lambda x: x + 1, {}, UsageError, "return its outputs by name"),
    "rows disagree": (lambda x: {"z": x[:1]}, {}, UsageError, "'z' has 1 rows for a block of 10.*trim=True"),
    "outputs disagree": (lambda x: {"a": x, "b": x[1:]}, {"trim": True}, UsageError, "disagree on rows.*a 10, b 9"),
    "scalar output": (lambda x: {"z": tf.reduce_sum(x)}, {}, UsageError, "'z' is a scalar"),
    "no columns": (lambda: {"z": 1}, {}, UsageError, "reads no column"),
    "star arguments": (lambda *x: {"z": x}, {}, UsageError, "name each one"),
    "unknown feed": (lambda x: {"z": x}, {"feed_dict": {"q": "x"}}, UsageError, "feed_dict has 'q'"),
    "unknown constant": (lambda x: {"z": x}, {"constants": {"c": 1}}, UsageError, "constants has 'c'"),
    "complex output": (lambda x: {"z": tf.complex(x, x)}, {}, UsageError, "'z' is complex128"),
    "ragged output": (lambda x: {"z": tf.RaggedTensor.from_tensor(x[:, None])}, {}, UsageError, "to_tensor"),
    "python if": (lambda x: {"z": x if x[0] > 1 else -x}, {}, UsageError, "cannot be traced"),
    "no rows in a block": (lambda x: {"z": x}, {"block_rows": 0}, UsageError, "at least one row"),
}


@pytest.mark.parametrize("case", MAPPING_ERRORS)
def test_a_map_that_cannot_be_is_told_by_its_own_message(case: str) -> None:
    function, options, kind, message = MAPPING_ERRORS[case]
    with pytest.raises(kind, match=message):
        tfs.map_blocks(function, NUMBERS, **options)


REDUCING_ERRORS = {
    "no x_2": (tfs.reduce_rows, lambda x_1: {"x": x_1}, "lacks the parameter 'x_2'"),
    "extra, by rows": (tfs.reduce_rows, lambda x_1, x_2, y: {"x": x_1}, "extra parameter 'y'"),
    "extra, by blocks": (tfs.reduce_blocks, lambda x: {"x": x}, "extra parameter 'x'.*x_input"),
    "no input": (tfs.reduce_blocks, lambda x_input: {"x": x_input[0], "y": x_input[0]}, "takes no 'y_input'"),
    "no output": (tfs.reduce_blocks, lambda x_input: {"y": x_input[0]}, "takes no 'y_input'"),
    "other dtype": (tfs.reduce_blocks, lambda x_input: {"x": tf.size(x_input)}, "'x' as int32 from float64"),
    "other shape": (
        tfs.reduce_blocks,
        lambda x_input: {"x": x_input},
        r"'x' as float64\[\?\] from rows of float64\[\]",
    ),
}


@pytest.mark.parametrize("case", REDUCING_ERRORS)
def test_a_reducer_that_cannot_be_is_told_by_its_own_message(case: str) -> None:
    reduce, function, message = REDUCING_ERRORS[case]
    with pytest.raises(UsageError, match=message):
        reduce(function, NUMBERS)


def test_a_reducer_whose_output_is_missing_is_told() -> None:
    frame = pd.DataFrame({"x": [1.0], "y": [1.0]})
    with pytest.raises(UsageError, match="does not return 'y'"):
        tfs.reduce_blocks(lambda x_input, y_input: {"x": x_input[0]}, frame)


def test_nulls_are_refused_by_the_name_of_their_column_if_it_is_read() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "s": ["a", None]})
    assert tfs.map_blocks(lambda x: {"z": x}, frame)["s"].tolist() == ["a", None]
    with pytest.raises(DataError, match="column 's' has nulls"):
        tfs.map_blocks(lambda s: {"z": s}, frame)


def test_rows_whose_sizes_follow_from_their_values_are_computed() -> None:
    frame = pd.DataFrame({"text": ["a b c", "d e", ""], "v": [[1.0, -2.0, 3.0], [-1.0, -1.0, 4.0], [0.0, -5.0, -6.0]]})

    def words(text: Any, v: Any) -> dict[str, Any]:
        split, positive = tf.strings.split(text), tf.boolean_mask(v, v > 0)
        pairs = tf.stack([positive, -positive])
        return {"n": tf.size(split), "words": split, "sum": tf.reduce_sum(positive), "pairs": pairs}

    for block_rows in (None, 2, 1):
        made = tfs.map_rows(words, frame, block_rows=block_rows)
        assert made["n"].tolist() == [3, 2, 0]
        assert [list(cell) for cell in made["words"]] == [["a", "b", "c"], ["d", "e"], []]
        assert made["sum"].tolist() == [4, 4, 0]
        assert [[list(row) for row in cell] for cell in made["pairs"]] == [[[1, 3], [-1, -3]], [[4], [-4]], [[], []]]


def test_a_row_that_cannot_be_computed_says_why() -> None:
    frame = pd.DataFrame({"text": ["1 2", "3 x 4"]})
    with pytest.raises(UsageError, match="could not correctly convert string: x"):
        tfs.map_rows(lambda text: {"n": tf.reduce_sum(tf.strings.to_number(tf.strings.split(text)))}, frame)


def test_blocks_of_ragged_cells_are_refused_and_map_rows_is_named() -> None:
    with pytest.raises(DataError, match=r"'v' has cells of 1 and of 2 values.*map_rows"):
        tfs.map_blocks(lambda v: {"z": v}, pd.DataFrame({"v": [[1.0], [1.0, 2.0]]}))


def test_a_cell_ragged_in_itself_is_refused() -> None:
    with pytest.raises(DataError, match="inner arrays differ in length"):
        tfs.map_rows(lambda v: {"z": v}, pd.DataFrame({"v": [[[1.0], [1.0, 2.0]]]}))


def test_what_cannot_be_pickled_is_told() -> None:
    endless = (number for number in range(3))
    with pytest.raises(CaptureError, match="cannot be sent"):
        tfs.map_blocks(lambda x: {"z": x, "l": endless}, NUMBERS)


def test_anything_but_a_dataframe_is_refused() -> None:
    with pytest.raises(UsageError, match="not list"):
        tfs.map_blocks(lambda x: {"z": x}, [1, 2])


def test_large_keys_beside_missing_ones_stay_the_numbers_that_they_are() -> None:
    keys = pd.array([2**60 + 1, 2**60 + 2, None], dtype="Int64")
    made = tfs.aggregate(
        lambda x_input: {"x": tf.reduce_sum(x_input, axis=0)},
        pd.DataFrame({"k": keys, "x": [1.0, 2.0, 3.0]}).groupby("k", dropna=False),
    )
    assert {None if pd.isna(key) else int(key) for key in made["k"]} == {2**60 + 1, 2**60 + 2, None}
    assert sorted(made["x"]) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("made", ["int64", "int32", "uint8"])
def test_what_no_integer_holds_is_the_same_in_every_block(made: str) -> None:
    frame = pd.DataFrame({"x": np.full(1000, np.nan)})
    cast = tfs.map_blocks(
        lambda x: {"z": tf.cast(tf.floor(x * 0.5 + 1.0) + tf.round(x) - 1.0, made)}, frame, block_rows=300
    )
    assert cast["z"].nunique() == 1


def test_rows_that_a_noted_type_would_round_are_refused() -> None:
    """They come by a union with a column that a map made as float16, which Spark holds as float."""
    noted = ColumnSpec("h", "float16", ())
    assert to_numpy(pa.array([0.5, float("nan"), float("inf")], pa.float32()), noted).dtype == np.float16
    with pytest.raises(DataError, match=r"column 'h' is noted as float16, which rounds 0\.1000.*metadata="):
        to_numpy(pa.array([0.5, 0.1], pa.float32()), noted)
