"""The keys of ``df.groupBy(…)``, which Spark keeps to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfos_magic.errors import UsageError


@dataclass(frozen=True)
class Key:
    """One key: the name of its column, and the expression that makes it."""

    name: str
    expression: Any


@dataclass(frozen=True)
class Grouping:
    """A DataFrame and the keys by which it is grouped."""

    frame: Any
    columns: tuple[Key, ...]


def grouping_of(grouped: Any) -> Grouping:
    """Read ``df.groupBy(…)`` of a classic or a Connect session. Raises :class:`UsageError` for anything else."""
    if type(grouped).__name__ != "GroupedData" or not type(grouped).__module__.startswith("pyspark.sql"):
        raise UsageError(f"aggregate takes df.groupBy('key'), not {type(grouped).__name__}")
    frame = grouped._df
    expressions = _expressions(grouped)
    if not expressions:
        raise UsageError("groupBy() without keys is one group: use reduce_blocks")
    fields = frame.select(*expressions).schema.fields
    return Grouping(frame, tuple(Key(f.name, _normal(f, e)) for f, e in zip(fields, expressions, strict=True)))


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
    if field.dataType.typeName() in ("array", "struct", "map", "variant"):
        raise UsageError(f"groups by {field.name!r} of type {field.dataType.simpleString()}: use keys that are scalars")
    return expression
