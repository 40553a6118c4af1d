"""Grouped DataFrames of Spark and pandas seen alike: their keys, and two tasks run over their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tfos_magic.errors import DataError, UsageError
from tfos_magic.frames.source import FrameSource, PandasSource, SparkSource, arrow_of_series, map_in_arrow, quoted
from tfos_magic.frames.specs import ColumnSpec, field_of_spec
from tfos_magic.frames.task_failures import Task


class Grouping(Protocol):
    """A DataFrame and the keys by which it is grouped."""

    @property
    def source(self) -> FrameSource:
        """The DataFrame."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys' columns."""

    def run(self, read: Mapping[str, str], made: Sequence[ColumnSpec], first: Task, last: Task) -> Any:
        """The DataFrame of keys and columns ``made``: ``first`` sees any rows, ``last`` all of a key, sorted by it.

        ``read`` are the columns that become others, by the names of these.
        """


@dataclass(frozen=True)
class Key:
    """One key: the name of its column, and the expression that makes it."""

    name: str
    expression: Any


@dataclass(frozen=True)
class SparkGrouping:
    """``df.groupBy(…)`` of Spark, whose partial results alone are shuffled."""

    frame: Any
    keys: tuple[Key, ...]

    @property
    def source(self) -> FrameSource:
        return SparkSource(self.frame)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(key.name for key in self.keys)

    def run(self, read: Mapping[str, str], made: Sequence[ColumnSpec], first: Task, last: Task) -> Any:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        values = [F.col(quoted(column)).alias(name) for name, column in read.items()]
        rows = self.frame.select(*[key.expression.alias(key.name) for key in self.keys], *values)
        schema = StructType(rows.schema.fields[: len(self.keys)] + [field_of_spec(spec) for spec in made])
        by_key = [quoted(name) for name in self.names]
        partials = map_in_arrow(rows, first, schema).repartition(*by_key).sortWithinPartitions(*by_key)
        return map_in_arrow(partials, last, schema)


@dataclass(frozen=True)
class PandasGrouping:
    """``df.groupby(…)`` of pandas by columns. Rows without a key are a group, as in Spark, or refused."""

    frame: Any
    names: tuple[str, ...]
    dropna: bool

    @property
    def source(self) -> FrameSource:
        return PandasSource(self.frame)

    def run(self, read: Mapping[str, str], made: Sequence[ColumnSpec], first: Task, last: Task) -> Any:
        keys = list(self.names)
        if self.dropna:
            _refuse_missing(self.frame[keys])
        rows = self.frame.sort_values(keys, kind="stable")
        columns = [_key_of_series(rows[name]) for name in keys]
        columns += [arrow_of_series(rows[name]) for name in read.values()]
        batches = list(last(pa.table(columns, [*keys, *read]).to_batches()))
        if not batches:
            return rows[keys].reindex(columns=[*keys, *read])
        # Whole numbers beside missing ones would be floats, in which those beyond 2**53 are others.
        return pa.Table.from_batches(batches).to_pandas(integer_object_nulls=True)


def _refuse_missing(keys: Any) -> None:
    missing = [name for name in keys.columns if keys[name].isna().any()]
    if missing:
        raise DataError(
            f"key {missing[0]!r} has missing values (NaN or None), which pandas would leave out and Spark groups: say "
            f"df.groupby(…, dropna=False) to have them as a group, or df.dropna(subset=[{missing[0]!r}]) to drop them"
        )


def _key_of_series(series: Any) -> Any:
    """A key's column, all missing values alike, and zeros of both signs too, as in Spark."""
    return pa.array(series + 0.0 if series.dtype.kind == "f" else series, from_pandas=True)


_BY_BYTES = "UTF8_BINARY"
"""The collation of texts that are the same where their bytes are."""


def grouping_of(grouped: Any) -> Grouping:
    """Read a grouped DataFrame of Spark or pandas. Raises :class:`UsageError` for anything else."""
    module, name = type(grouped).__module__, type(grouped).__name__
    if name == "GroupedData" and module.startswith("pyspark.sql"):
        return _of_spark(grouped)
    if name == "DataFrameGroupBy" and module.startswith("pandas"):
        return _of_pandas(grouped)
    raise UsageError(f"aggregate takes df.groupBy('key'), or df.groupby('key') of pandas, not {name}")


def _of_pandas(grouped: Any) -> PandasGrouping:
    given = grouped.keys if isinstance(grouped.keys, list) else [grouped.keys]
    if not all(isinstance(key, str) and key in grouped.obj.columns for key in given):
        raise UsageError("a pandas DataFrame is aggregated by columns that it has: df.groupby(['a', 'b'])")
    return PandasGrouping(grouped.obj, tuple(given), grouped.dropna)


def _of_spark(grouped: Any) -> SparkGrouping:
    frame = grouped._df
    expressions = _expressions(grouped)
    if not expressions:
        raise UsageError("groupBy() without keys is one group: use reduce_blocks")
    fields = frame.select(*expressions).schema.fields
    names = [field.name for field in fields]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UsageError(f"groups by {twice[0]!r} twice: name each key once, by alias where they differ")
    return SparkGrouping(frame, tuple(Key(f.name, _normal(f, e)) for f, e in zip(fields, expressions, strict=True)))


def _expressions(grouped: Any) -> list[Any]:
    if hasattr(grouped, "_grouping_cols"):
        _refuse_kind(str(grouped._group_type))
        return list(grouped._grouping_cols)
    from pyspark.sql.classic.column import Column

    _refuse_kind(grouped._jgd.toString())
    kept, jvm = grouped._jgd.groupingExprs(), grouped.session._jvm
    to_column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column
    return [Column(to_column(kept.apply(i))) for i in range(kept.size())]


def _refuse_kind(said: str) -> None:
    if any(word in said.casefold() for word in ("rollup", "cube", "pivot", "groupingsets")):
        raise UsageError("aggregate takes df.groupBy(…) alone, without rollup, cube or pivot")


def _normal(field: Any, expression: Any) -> Any:
    """Spark groups 0.0 and -0.0 together; a sum with 0.0 makes them the same."""
    from pyspark.sql import functions as F

    if field.dataType.typeName() in ("float", "double"):
        return expression + F.lit(0.0).cast(field.dataType)
    if (collation := getattr(field.dataType, "collation", _BY_BYTES)) != _BY_BYTES:
        raise UsageError(
            f"groups by {field.name!r} with the collation {collation}, and texts are compared by their bytes here: "
            "group by what makes equal texts the same, such as F.lower or F.rtrim of the column cast to string"
        )
    if field.dataType.typeName() in ("array", "struct", "map", "variant"):
        raise UsageError(f"groups by {field.name!r} of type {field.dataType.simpleString()}: use keys that are scalars")
    return expression
