"""TFRecord files and DataFrames, one as the other."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from tfos_magic.errors import DataError

loadedDF: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""The DataFrames that :func:`loadTFRecords` gave, and where they were read from."""


def isLoadedDF(df: Any) -> bool:
    """Whether :func:`loadTFRecords` gave this DataFrame."""
    return df in loadedDF


def saveAsTFRecords(df: Any, output_dir: str) -> None:
    """Write a DataFrame as TFRecord files of ``tf.train.Example``, into a folder that is not there yet."""
    from tfos_magic.tfrecord import register_tfrecord

    register_tfrecord(df.sparkSession)
    sc = df.sparkSession.sparkContext
    path = sc._jvm.org.apache.hadoop.fs.Path(output_dir)
    if path.getFileSystem(sc._jsc.hadoopConfiguration()).exists(path):
        raise DataError(f"{output_dir} already exists: give another folder, or delete it.")
    df.write.format("tfrecord").mode("append").save(output_dir)


def loadTFRecords(sc: Any, input_dir: str, binary_features: Collection[str] = ()) -> Any:
    """Read TFRecord files of ``tf.train.Example`` as a DataFrame, its types told by the records.

    Whole numbers are bigints, others doubles, and bytes texts, but for ``binary_features``; features with several
    values are arrays. Its columns are in the order of their names.
    """
    from pyspark.sql import SparkSession

    from tfos_magic.tfrecord import register_tfrecord

    spark = SparkSession(sc)
    register_tfrecord(spark)
    raw = spark.read.format("tfrecord").option("binary", "true").load(input_dir)
    df = raw.select(*(_as_there(raw, name, name in binary_features) for name in sorted(raw.columns)))
    loadedDF[df] = input_dir
    return df


def _as_there(df: Any, name: str, binary: bool) -> Any:
    from pyspark.sql import functions as F

    column, kind = F.col(f"`{name}`"), df.schema[name].dataType.simpleString()
    if binary or "binary" not in kind:
        return column.cast(kind.replace("float", "double")).alias(name)
    return (_text(name, column) if kind == "binary" else F.transform(column, lambda each: _text(name, each))).alias(
        name
    )


def _text(name: str, column: Any) -> Any:
    """Bytes as text; others than those of UTF-8 are an error of the Spark job."""
    from pyspark.sql import functions as F

    text = column.cast("string")
    told = f"Feature {name!r} has bytes that are not UTF-8: name it in binary_features."
    return F.when(column.isNull() | F.is_valid_utf8(text), text).otherwise(F.raise_error(F.lit(told)))


def toTFExample(dtypes: Iterable[tuple[str, str]]) -> Callable[[Iterable[Any]], Iterator[tuple[bytearray, None]]]:
    """A function for ``mapPartitions`` that makes serialized ``tf.train.Example`` of rows with these ``df.dtypes``."""
    known = [(name, _feature_of(name, dtype)) for name, dtype in dtypes]

    def examples(rows: Iterable[Any]) -> Iterator[tuple[bytearray, None]]:
        import tensorflow as tf

        for row in rows:
            features = {name: _feature(tf.train, kind, row[name]) for name, kind in known if row[name] is not None}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            yield bytearray(example.SerializeToString()), None

    return examples


def _feature_of(name: str, dtype: str) -> str:
    kind = dtype.removeprefix("array<").removesuffix(">")
    if kind in ("float", "double"):
        return "float"
    if kind in ("boolean", "tinyint", "smallint", "int", "bigint", "long"):
        return "int64"
    if kind in ("binary", "string"):
        return "bytes"
    raise DataError(f"Column {name!r} is of type {dtype}, which tf.train.Example cannot hold.")


def _feature(train: Any, kind: str, value: Any) -> Any:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if kind == "bytes":
        values = [each.encode() if isinstance(each, str) else bytes(each) for each in values]
        return train.Feature(bytes_list=train.BytesList(value=values))
    if kind == "float":
        return train.Feature(float_list=train.FloatList(value=values))
    return train.Feature(int64_list=train.Int64List(value=map(int, values)))


def infer_schema(example: Any, binary_features: Collection[str] = ()) -> Any:
    """The schema that a ``tf.train.Example`` is read with."""
    from pyspark.sql.types import ArrayType, BinaryType, DoubleType, LongType, StringType, StructField, StructType

    types = {"int64_list": LongType(), "float_list": DoubleType(), "bytes_list": StringType()}

    def type_of(name: str, feature: Any) -> Any:
        if name in binary_features:
            return BinaryType()
        filled = feature.WhichOneof("kind") or "bytes_list"
        several = len(getattr(feature, filled).value) > 1
        return ArrayType(types[filled]) if several else types[filled]

    features = sorted(example.features.feature.items())
    return StructType([StructField(name, type_of(name, feature), True) for name, feature in features])


def fromTFExample(records: Iterable[Any], binary_features: Collection[str] = ()) -> Iterator[Any]:
    """For ``mapPartitions``: rows of records ``(serialized tf.train.Example, anything)``."""
    import tensorflow as tf
    from pyspark.sql import Row

    for record in records:
        example = tf.train.Example.FromString(bytes(record[0]))
        features = sorted(example.features.feature.items())
        yield Row(**{name: _value(name in binary_features, feature) for name, feature in features})


def _value(binary: bool, feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    if kind == "bytes_list":
        values = [bytearray(each) if binary else each.decode() for each in values]
    return values if len(values) > 1 else next(iter(values), None)
