"""Planning a feed from a Spark schema, before any job starts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from tfos_magic.columns.columns import Column, column_field, decode_schema, field_column
from tfos_magic.columns.list_lengths import ListLengths, settle
from tfos_magic.columns.missing import Missing
from tfos_magic.columns.schema_plan import plan_feed
from tfos_magic.columns.selection import Selection
from tfos_magic.errors import DataError

SCHEMA = T.StructType(
    [
        T.StructField("pixels", T.ArrayType(T.FloatType())),
        T.StructField("age", T.IntegerType()),
        T.StructField("name", T.StringType()),
        T.StructField("label", T.LongType()),
    ]
)


def test_all_columns_but_the_label_are_features_and_the_label_comes_last() -> None:
    plan = plan_feed(SCHEMA, Selection.of(None, "age"))
    assert plan.features == ["pixels", "name", "label"]
    assert plan.names == ["pixels", "name", "label", "age"]
    assert plan.columns[0] == Column("pixels", "list", "float32")


def test_features_keep_the_order_in_which_they_were_named() -> None:
    assert plan_feed(SCHEMA, Selection.of(["name", "pixels"], "label")).names == ["name", "pixels", "label"]


def test_without_a_label_every_column_is_carried() -> None:
    assert plan_feed(SCHEMA).names == ["pixels", "age", "name", "label"]


@pytest.mark.parametrize(
    ("spark_type", "kind", "dtype"),
    [
        (T.BooleanType(), "scalar", "bool"),
        (T.ByteType(), "scalar", "int8"),
        (T.ShortType(), "scalar", "int16"),
        (T.IntegerType(), "scalar", "int32"),
        (T.LongType(), "scalar", "int64"),
        (T.FloatType(), "scalar", "float32"),
        (T.DoubleType(), "scalar", "float64"),
        (T.StringType(), "bytes", "bytes"),
        (T.BinaryType(), "bytes", "bytes"),
        (T.ArrayType(T.BooleanType()), "list", "bool"),
        (T.ArrayType(T.DoubleType()), "list", "float64"),
        (T.ArrayType(T.StringType()), "list", "bytes"),
        (T.DecimalType(10, 2), "scalar", "float64"),
        (T.VarcharType(9), "bytes", "bytes"),
    ],
)
def test_spark_types_become_the_tensors_they_look_like(spark_type: T.DataType, kind: str, dtype: str) -> None:
    plan = plan_feed(T.StructType([T.StructField("x", spark_type)]))
    assert plan.columns == (Column("x", kind, dtype),)


def test_the_schema_of_a_plan_carries_all_that_is_known_of_its_columns() -> None:
    struct = T.StructType([T.StructField("a.b", T.ArrayType(T.DateType())), T.StructField("c", T.StringType())])
    missing = Missing.of(fill={"s.c": "?", "v": 0}, pad="0:7", null_mask=["v"])
    plan = plan_feed(T.StructType([T.StructField("s", struct), T.StructField("v", T.LongType())]), missing=missing)
    schema = decode_schema(plan.schema)
    assert schema.names == plan.names == ["s", "v", "v_mask"]
    assert [field_column(field) for field in schema] == [*plan.columns, plan.columns[1].mask]
    assert schema.field("v_mask").type == pa.uint8()
    assert plan.columns[0].fields[0] == Column(
        "a.b", "list", "int64", unit="days since 1970-01-01", pad="0", pad_to=(7,)
    )


@pytest.mark.parametrize(
    ("features", "label", "said"),
    [
        (["pixel"], None, "no column 'pixel'. Did you mean 'pixels'"),
        (["Pixels"], None, "Did you mean 'pixels'"),
        (["zzz"], None, "It has 'pixels', 'age', 'name', 'label'"),
        (None, "lable", "no label 'lable'. Did you mean 'label'"),
        (None, "age,label", "a label is one column"),
        (["age", "label"], "label", "both the label and a feature"),
        (["age", "age"], None, "named twice"),
        ([], "label", "no feature columns are left"),
    ],
)
def test_contradictions_are_refused_with_a_remedy(features: list[str] | None, label: str | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        plan_feed(SCHEMA, Selection.of(features, label))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": "age"}, "the weight 'age' is of rows that have a label"),
        ({"label": "label", "weight": "label"}, "both the label and the weight"),
        ({"features": ["age"], "label": "label", "weight": "age"}, "both the weight and a feature"),
        ({"label": "label", "weight": "ages"}, "no weight 'ages'. Did you mean 'age'"),
        ({"label": "label", "weight": "name"}, "a weight is a number for each row, and column 'name' is"),
        ({"label": "label", "weight": "pixels"}, "a weight is a number for each row, and column 'pixels' is"),
        ({"matrix": True}, "a matrix holds numbers, and column 'name' has none"),
    ],
)
def test_weights_and_matrices_of_what_is_no_number_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        plan_feed(SCHEMA, Selection.of(**options))


def test_a_weight_is_no_feature() -> None:
    plan = plan_feed(SCHEMA, Selection.of(label="label", weight="age"))
    assert (plan.names, plan.features) == (["pixels", "name", "label", "age"], ["pixels", "name"])


@pytest.mark.parametrize(
    ("spark_type", "said"),
    [
        (T.MapType(T.StringType(), T.FloatType()), r"F\.map_values\('x'\)"),
        (T.ArrayType(T.StructType([T.StructField("a", T.FloatType())])), r"F\.col\('x'\)\['a'\]"),
        (T.StructType([T.StructField("m", T.MapType(T.StringType(), T.FloatType()))]), r"F\.map_values\('m'\)"),
        (T.StructType([]), r"has no fields"),
        (T.ArrayType(T.MapType(T.StringType(), T.FloatType())), r"map_values"),
        (T.NullType(), r"nothing but nulls"),
        (T.VariantType(), r"turn it into a number"),
        (T.YearMonthIntervalType(), r"turn it into a number"),
    ],
)
def test_types_that_make_no_tensor_are_refused_with_a_remedy(spark_type: T.DataType, said: str) -> None:
    schema = T.StructType([T.StructField("x", spark_type), T.StructField("y", T.LongType())])
    with pytest.raises(DataError, match=r"'x' of type .*" + said):
        plan_feed(schema)
    assert plan_feed(schema, Selection.of(["y"])).names == ["y"]


@pytest.mark.parametrize(
    ("spark_type", "unit"),
    [
        (T.DateType(), "days since 1970-01-01"),
        (T.TimestampType(), "microseconds since 1970-01-01 UTC"),
        (T.TimestampNTZType(), "microseconds since 1970-01-01, local"),
        (T.TimeType(), "nanoseconds of the day"),
        (T.DayTimeIntervalType(), "microseconds"),
    ],
)
def test_dates_and_times_become_int64_and_say_what_they_count(spark_type: T.DataType, unit: str) -> None:
    plan = plan_feed(T.StructType([T.StructField("x", spark_type), T.StructField("l", T.ArrayType(spark_type))]))
    assert plan.columns == (Column("x", "scalar", "int64", unit=unit), Column("l", "list", "int64", unit=unit))
    assert str(plan.columns[0]) == f"x int64 (rows,) {unit}"


def test_vectors_become_lists_of_float64_alone_and_matrices_nothing() -> None:
    from pyspark.ml.linalg import MatrixUDT, VectorUDT

    plan = plan_feed(T.StructType([T.StructField("x", VectorUDT())]))
    assert plan.columns == (Column("x", "vector", "float64"),)
    with pytest.raises(DataError, match="array of numbers"):
        plan_feed(T.StructType([T.StructField("x", MatrixUDT())]))
    with pytest.raises(DataError, match="vector_to_array"):
        plan_feed(T.StructType([T.StructField("x", T.ArrayType(VectorUDT()))]))


def test_columns_say_their_dtypes_and_shapes_as_far_as_they_are_known() -> None:
    inner = T.StructType(
        [T.StructField("a", T.ArrayType(T.ArrayType(T.FloatType()))), T.StructField("b", T.BinaryType())]
    )
    (column,) = plan_feed(T.StructType([T.StructField("s", inner)])).columns
    assert str(column) == "s {a float32 (rows, ?, ?), b string (rows,)}"
    settled = settle(pa.schema([column_field(column.fields[0])]), ListLengths({("a",): ((3, 3), (1, 2))}))
    assert str(field_column(settled.field(0))) == "a float32 (rows, 3, varying)"


def treated(missing: Missing, label: str | None = None) -> dict[str, Column]:
    return {column.name: column for column in plan_feed(SCHEMA, Selection.of(None, label), missing).columns}


def test_a_value_without_a_name_is_for_the_columns_that_can_hold_it() -> None:
    columns = treated(Missing.of(fill=["-1", "unknown"], pad="0.5"))
    assert [columns[name].fill for name in ("pixels", "age", "name")] == ["-1", "-1", "unknown"]
    assert columns["pixels"].pad == "0.5"
    assert treated(Missing.of(fill=0.5))["age"].fill is None
    assert treated(Missing.of(fill=-1))["name"].fill is None


def test_a_value_with_a_name_comes_first_and_a_label_takes_no_other() -> None:
    columns = treated(Missing.of(fill=["age=7", "0", "name="]), label="label")
    assert [columns[name].fill for name in ("age", "name", "pixels", "label")] == ["7", "", "0", None]
    assert treated(Missing.of(fill={"label": 3}), label="label")["label"].fill == "3"


def test_of_several_values_for_one_column_the_last_holds() -> None:
    columns = treated(Missing.of(fill=["age=1", "age=7", "0", "9"], pad=["pixels=0:3", "pixels=2:5"]))
    assert [columns[name].fill for name in ("age", "label")] == ["7", "9"]
    assert (columns["pixels"].pad, columns["pixels"].pad_to) == ("2", (5,))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"fill": {"agee": 0}}, "names a column 'agee'. Did you mean 'age'"),
        ({"pad": "pixel=0"}, "Did you mean 'pixels'"),
        ({"null_mask": ["nam"]}, "Did you mean 'name'"),
        ({"fill": {"age": 0.5}}, "--fill age=0.5: column 'age' holds int32"),
        ({"fill": "age=3000000000"}, "holds int32"),
        ({"pad": "0:3x4"}, "its arrays have 1 level, so give 1, as in --pad pixels=0:20"),
        ({"pad": "0:0"}, "a length of 0"),
    ],
)
def test_values_that_do_not_suit_are_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        treated(Missing.of(**how))


def test_a_mask_needs_a_name_that_is_free_and_a_column_that_is_no_struct() -> None:
    taken = T.StructType([T.StructField("x", T.LongType()), T.StructField("x_mask", T.LongType())])
    with pytest.raises(DataError, match="'x_mask' is named twice"):
        plan_feed(taken, missing=Missing.of(null_mask="x"))
    struct = T.StructType([T.StructField("s", taken)])
    for name in ("s", "s.x"):
        with pytest.raises(DataError, match="'s' is a struct"):
            plan_feed(struct, missing=Missing.of(null_mask=name))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match="named twice"):
        plan_feed(T.StructType([T.StructField("x", T.LongType()), T.StructField("x", T.LongType())]))
