"""Planning a feed from a Spark schema, before any job starts."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from tfos_magic.errors import DataError
from tfos_magic.records.columns import Column, FeedPlan, decode_schema, plan_feed

SCHEMA = T.StructType(
    [
        T.StructField("pixels", T.ArrayType(T.FloatType())),
        T.StructField("age", T.IntegerType()),
        T.StructField("name", T.StringType()),
        T.StructField("label", T.LongType()),
    ]
)


def test_all_columns_but_the_label_are_features_and_the_label_comes_last() -> None:
    plan = plan_feed(SCHEMA, None, "age")
    assert plan.features == ["pixels", "name", "label"]
    assert plan.names == ["pixels", "name", "label", "age"]
    assert plan.columns[0] == Column("pixels", "list", "float32")


def test_features_keep_the_order_in_which_they_were_named() -> None:
    assert plan_feed(SCHEMA, ["name", "pixels"], "label").names == ["name", "pixels", "label"]


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
    ],
)
def test_spark_types_become_the_tensors_they_look_like(spark_type: T.DataType, kind: str, dtype: str) -> None:
    plan = plan_feed(T.StructType([T.StructField("x", spark_type)]))
    assert plan.columns == (Column("x", kind, dtype),)


def test_a_plan_and_its_schema_cross_json_unharmed() -> None:
    plan = plan_feed(SCHEMA, None, "label")
    assert FeedPlan.from_json(plan.to_json()) == plan
    schema = decode_schema(plan.schema)
    assert schema.names == plan.names
    assert schema.field("pixels").type == pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("features", "label", "said"),
    [
        (["pixel"], None, "no column 'pixel': did you mean 'pixels'"),
        (["Pixels"], None, "did you mean 'pixels'"),
        (["zzz"], None, "it has 'pixels', 'age', 'name', 'label'"),
        (None, "lable", "no label 'lable': did you mean 'label'"),
        (["age", "label"], "label", "both the label and a feature"),
        (["age", "age"], None, "named twice"),
        ([], "label", "no feature columns are left"),
    ],
)
def test_contradictions_are_refused_with_a_remedy(features: list[str] | None, label: str | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        plan_feed(SCHEMA, features, label)


@pytest.mark.parametrize(
    ("spark_type", "said"),
    [
        (T.DecimalType(10, 2), r"F\.col\('x'\)\.cast\('double'\)"),
        (T.DateType(), r"unix_date"),
        (T.TimestampType(), r"unix_timestamp"),
        (T.ArrayType(T.ArrayType(T.FloatType())), r"F\.flatten\('x'\)"),
        (T.ArrayType(T.StringType()), r"only arrays of numbers"),
        (T.MapType(T.StringType(), T.FloatType()), r"map_values"),
        (T.StructType([T.StructField("a", T.FloatType())]), r"'x\.\*'"),
        (T.NullType(), r"nothing but nulls"),
        (T.DayTimeIntervalType(), r"turn it into numbers"),
    ],
)
def test_types_that_make_no_tensor_are_refused_with_a_remedy(spark_type: T.DataType, said: str) -> None:
    schema = T.StructType([T.StructField("x", spark_type), T.StructField("y", T.LongType())])
    with pytest.raises(DataError, match=r"'x' of type .*" + said):
        plan_feed(schema)
    assert plan_feed(schema, ["y"]).names == ["y"]


def test_an_ml_vector_is_pointed_to_vector_to_array() -> None:
    from pyspark.ml.linalg import VectorUDT

    with pytest.raises(DataError, match="vector_to_array"):
        plan_feed(T.StructType([T.StructField("x", VectorUDT())]))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match="named twice"):
        plan_feed(T.StructType([T.StructField("x", T.LongType()), T.StructField("x", T.LongType())]))
