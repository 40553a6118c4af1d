"""What estimators look at in a DataFrame before anything trains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import BooleanType, NumericType

from tfos_magic.columns.schema_plan import suggestion
from tfos_magic.errors import DataError, UsageError
from tfos_magic.frames.source import quoted
from tfos_magic.ml.fit_on_workers import few
from tfos_magic.spark.session import is_dataframe

MOST_CLASSES = 10_000
MOST_EXACT = 2**53
"""Whole numbers up to here are told apart by a double, which labels and predictions of Spark ML are."""


def check_columns(df: Any, names: list[str]) -> None:
    """Raise :class:`DataError` for a column that is not there."""
    if missing := [name for name in names if name not in df.columns]:
        raise DataError(f"The DataFrame has no column {missing[0]!r}. {suggestion(missing[0], df.columns)}")
    if twice := [name for name in names if df.columns.count(name) > 1]:
        raise DataError(f"There are two columns {twice[0]!r}: rename one of them, or drop it.")


class FrameRows:
    """A DataFrame as estimators read it. What was looked at once is known: DataFrames too, which are fed but once."""

    def __init__(self, frame: Any) -> None:
        if not is_dataframe(frame):
            raise UsageError(f"{type(frame).__name__} is not a Spark DataFrame: spark.createDataFrame(…) makes one.")
        if frame.isStreaming:
            raise UsageError(
                "This DataFrame is a stream, which has no end: fit on what a query has written, or train on it in a "
                "cell (%%tfos_train) or by TFCluster.feed_stream."
            )
        self.frame = frame
        self._checked: set[str] = set()
        self._labels: dict[str, tuple[int, ...]] = {}
        self._splits: dict[str, dict[str, Any]] = {}
        self._digests: dict[tuple[str, ...], str] = {}

    def check(self, features: list[str], label: str, weight: str | None = None) -> None:
        """Raise :class:`DataError` for columns that are not there, and for values that nothing can be learned from.

        That is one job over the columns, as Spark ML's own estimators look for NaN.
        """
        names = [*features, label, *([weight] if weight else [])]
        check_columns(self.frame, names)
        kind = self.frame.schema[label].dataType.simpleString()
        if kind == "string":
            raise DataError(f"Column {label!r} has texts, and labels are numbers: put a StringIndexer before.")
        if re.search(r"date|timestamp|interval|\btime\b", kind):
            raise DataError(f"Column {label!r} is of {kind}, and labels are numbers: cast it, as to seconds.")
        if weight and not isinstance(self.frame.schema[weight].dataType, NumericType):
            raise DataError(f"Column {weight!r} is to weight rows, but is not numeric.")
        if new := [name for name in names if name not in self._checked]:
            _check_values(self.frame, new, weight)
            self._checked.update(new)

    def labels(self, name: str) -> tuple[int, ...]:
        """The classes in a column, in their order. Raises :class:`DataError` for what is no class."""
        if name not in self._labels:
            self._labels[name] = _classes(self.frame, name)
        return self._labels[name]

    def refuse_labels_but(self, classes: Sequence[int], name: str) -> None:
        """Raise :class:`DataError` for a label that is none of the ``classes`` of a model."""
        if others := [label for label in self.labels(name) if label not in classes]:
            known = few(classes)
            raise DataError(f"Column {name!r} has {others[0]}, and the model's classes are {known}: drop these rows.")

    def digest(self, names: Sequence[str]) -> str:
        """A word for the rows of these columns, in their order and partitions."""
        if (key := tuple(names)) not in self._digests:
            from pyspark.sql import functions as F

            placed = self.frame.select(F.monotonically_increasing_id().alias("place"), *map(quoted, names))
            words = placed.select(F.xxhash64(*map(quoted, placed.columns)).cast("decimal(38,0)").alias("word"))
            rows, content = words.agg(F.count("*"), F.sum("word")).first()
            self._digests[key] = f"{rows} {content}"
        return self._digests[key]

    def split(self, indicator: str) -> dict[str, Any]:
        """The DataFrames ``train`` and ``validation``, as a column of booleans says, where one is named."""
        if indicator not in self._splits:
            self._splits[indicator] = _split(self.frame, indicator)
        return self._splits[indicator]


def _check_values(df: Any, names: list[str], weight: str | None) -> None:
    from pyspark.sql import functions as F

    looks = [look for name in names for look in _looks_at(df, name, name == weight)]
    rows, *found = df.agg(F.count("*"), *looks).first()
    if not rows:
        raise DataError("The DataFrame has no rows.")
    for name, bad_rows, least, most, lowest in zip(names, *(found[place::4] for place in range(4)), strict=True):
        if bad_rows:
            raise DataError(
                f"Column {name!r} has nulls, NaN or infinite numbers in {bad_rows:,} of {rows:,} rows: drop these, as "
                f"by df.dropna(subset=[{name!r}]), or fill them, as by an Imputer."
            )
        if least != most:
            raise DataError(
                f"Column {name!r} has from {least:,} to {most:,} values in a row, and a model takes as many of each "
                "row."
            )
        if name == weight and lowest < 0:
            raise DataError(f"Column {name!r} has weights below zero.")


def _looks_at(df: Any, name: str, is_weight: bool) -> list[Any]:
    """Four aggregates of a column: rows that have no numbers, the least and most values in a row, the least weight."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    kind, column = df.schema[name].dataType, F.col(quoted(name))
    is_list, text = kind.typeName() in ("vectorudt", "array"), kind.simpleString()
    if kind.typeName() == "vectorudt":
        column = F.when(column.isNotNull(), vector_to_array(column))
    is_float = any(known in text for known in ("vector", "double", "float"))

    def no_number(value: Any) -> Any:
        missing = value.isNull()
        return missing | F.isnan(value) | (F.abs(value) == float("inf")) if is_float else missing

    if not is_list:
        bad = no_number(column)
    elif text.count("array<") > 1 or "struct<" in text:  # the feed looks into these
        bad = column.isNull()
    else:
        bad = column.isNull() | F.exists(column, no_number)
    size = F.size(column) if is_list else F.lit(0)
    return [F.count_if(bad), F.min(size), F.max(size), F.min(column) if is_weight else F.lit(0.0)]


def _classes(df: Any, name: str) -> tuple[int, ...]:
    from pyspark.sql import functions as F

    kind = df.schema[name].dataType
    if not isinstance(kind, (NumericType, BooleanType)):
        raise DataError(
            f"Column {name!r} is of {kind.simpleString()}, and a class is one number: choose such a column."
        )
    rows = df.select(F.col(quoted(name)).cast("double")).distinct().limit(MOST_CLASSES + 1).collect()
    values = [row[0] for row in rows]
    if odd := [value for value in values if not value.is_integer()]:
        raise DataError(f"Column {name!r} has {odd[0]!r}, and classes are whole numbers: is this a regression?")
    if len(values) > MOST_CLASSES:
        raise DataError(f"Column {name!r} has more than {MOST_CLASSES:,} classes: is this a regression?")
    if values and max(map(abs, values)) >= MOST_EXACT:
        raise DataError(f"Column {name!r} has labels beyond 2**53, which no prediction tells apart: index them.")
    return tuple(sorted(map(int, values)))


def _split(df: Any, indicator: str) -> dict[str, Any]:
    from pyspark.sql import functions as F

    if not indicator:
        return {"train": df}
    check_columns(df, [indicator])
    if df.schema[indicator].dataType.typeName() != "boolean":
        raise DataError(
            f"validationIndicatorCol {indicator!r} is no column of booleans, true for rows to validate with."
        )
    column = F.col(quoted(indicator))
    known = {row[0] for row in df.select(column).distinct().collect()}
    if None in known:
        raise DataError(f"validationIndicatorCol {indicator!r} has nulls: fill them, as by df.fillna(False).")
    if known != {True, False}:
        raise DataError(
            f"validationIndicatorCol {indicator!r} is to be true for the rows to validate with and false for those to "
            f"train on, and is {', '.join(map(str, known)) or 'of no row'} throughout."
        )
    return {"train": df.where(~column), "validation": df.where(column)}
