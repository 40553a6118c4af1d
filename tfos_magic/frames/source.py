"""Spark and pandas DataFrames seen alike: their columns, and a task run over their Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tfos_magic.errors import DataError, UsageError
from tfos_magic.frames.gpus import profile_of
from tfos_magic.frames.specs import ColumnSpec, field_of_spec, spec_of_arrow, spec_of_field
from tfos_magic.frames.task_failures import (
    Task,
    TellingRefusals,
    WithNames,
    WithoutTraceback,
    fields_of_told,
    told_plainly,
    without_refusals,
)
from tfos_magic.spark.shipping import ship_package


class FrameSource(Protocol):
    """A DataFrame of either kind."""

    @property
    def specs(self) -> Mapping[str, Callable[[], ColumnSpec]]:
        """The spec of each column, on demand: a column that no function reads may be of any type."""

    def run(self, task: Task, passed: Sequence[str], made: Sequence[ColumnSpec], read: Sequence[str]) -> Any:
        """The DataFrame that ``task`` gives: columns ``passed`` through it and those ``made`` from those ``read``."""

    def fold(self, task: Task, made: Sequence[ColumnSpec], read: Sequence[str], last: Task) -> list[pa.RecordBatch]:
        """The batches that ``last`` gives from the rows that ``task`` makes of each partition."""

    def parse(self, schema: Any) -> tuple[ColumnSpec, ...]:
        """The columns that a user's schema names."""


@dataclass(frozen=True)
class SparkSource:
    """A Spark DataFrame, classic or Connect."""

    frame: Any

    @property
    def specs(self) -> Mapping[str, Callable[[], ColumnSpec]]:
        return {field.name: partial(spec_of_field, field) for field in self.frame.schema.fields}

    def run(self, task: Task, passed: Sequence[str], made: Sequence[ColumnSpec], read: Sequence[str]) -> Any:
        from pyspark.sql.types import StructType

        names = self.frame.columns
        if passed and (twice := [name for name in names if names.count(name) > 1]):
            raise DataError(f"there are two columns {twice[0]!r}: rename one of them, or drop it")
        frame = self.frame if passed else select(self.frame, read)
        known = {field.name: field for field in self.frame.schema.fields}
        fields = [known[name] for name in passed] + [field_of_spec(spec) for spec in made]
        return map_in_arrow(frame, task, StructType(fields))

    def fold(self, task: Task, made: Sequence[ColumnSpec], read: Sequence[str], last: Task) -> list[pa.RecordBatch]:
        from pyspark.sql.types import StructType

        spark, schema = self.frame.sparkSession, StructType(fields_of_told(made))
        first, final = (TellingRefusals(_light(each, spark), tuple(made)) for each in (task, last))
        partial_rows = map_in_arrow(select(self.frame, read), first, schema).repartition(1)
        with told_plainly():
            return list(without_refusals(map_in_arrow(partial_rows, final, schema).toArrow().to_batches()))

    def parse(self, schema: Any) -> tuple[ColumnSpec, ...]:
        from pyspark.sql.types import StructType

        parsed: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        return tuple(map(_output, parsed.fields))


@dataclass(frozen=True)
class PandasSource:
    """A pandas DataFrame: the same tasks run here, in this process."""

    frame: Any

    @property
    def specs(self) -> Mapping[str, Callable[[], ColumnSpec]]:
        return {name: partial(_spec_of_series, name, series) for name, series in self._series.items()}

    @property
    def _series(self) -> dict[str, Any]:
        return {str(name): series for name, series in self.frame.items()}

    def _batches(self, read: Sequence[str]) -> list[pa.RecordBatch]:
        return list(pa.table({name: arrow_of_series(self._series[name]) for name in read}).to_batches())

    def run(self, task: Any, passed: Sequence[str], made: Sequence[ColumnSpec], read: Sequence[str]) -> Any:
        # What passes through needs no way through Arrow: it stays as it is, and with it the index.
        batches = list(replace(task, passed=())(self._batches(read)))
        if not batches:
            return self.frame.iloc[:0].reindex(columns=[*passed, *(spec.name for spec in made)])
        new = pa.Table.from_batches(batches).to_pandas()
        return self.frame.assign(**{name: new[name].array for name in new.columns}) if passed else new

    def fold(self, task: Task, made: Sequence[ColumnSpec], read: Sequence[str], last: Task) -> list[pa.RecordBatch]:
        return list(last(task(self._batches(read))))

    def parse(self, schema: Any) -> tuple[ColumnSpec, ...]:
        raise UsageError("a schema is for Spark DataFrames: for pandas the function itself says what it gives")


def _output(field: Any) -> ColumnSpec:
    """The spec of a column that a user's schema names, of a type in which a function's numbers are held."""
    spec = spec_of_field(field)
    held = field_of_spec(spec).dataType
    if spec.vector or spec.of_time or (not spec.text and held != field.dataType):
        raise DataError(
            f"the schema has {field.name!r} as {field.dataType.simpleString()}: a tensor is a column of "
            f"type {held.simpleString()} there, to be cast afterwards"
        )
    return spec


def source_of(frame: Any) -> FrameSource:
    """Wrap a DataFrame. Raises :class:`UsageError` for anything else."""
    module, name = type(frame).__module__, type(frame).__name__
    if name == "DataFrame" and module.startswith("pyspark.sql"):
        return SparkSource(frame)
    if name == "DataFrame" and module.startswith("pandas"):
        return PandasSource(frame)
    raise UsageError(f"a Spark or pandas DataFrame is needed, not {type(frame).__name__}")


def arrow_of_series(series: Any) -> Any:
    """A pandas column as Arrow: NaN among floating-point numbers is a value, as in Spark; None and NA are nulls.

    Raises :class:`DataError` for values that no type of Arrow holds.
    """
    # Arrow takes any NaN of pandas for a null unless it is told that this is NumPy.
    of_numpy = isinstance(series.dtype, np.dtype) and series.dtype.kind in "fO"
    try:
        return pa.array(series.to_numpy(), from_pandas=False) if of_numpy else pa.array(series)
    except pa.ArrowException:
        pass
    try:
        return pa.array(series, from_pandas=True)
    except pa.ArrowException as error:
        raise DataError(f"column {series.name!r} cannot become a tensor: {error}") from None


def _spec_of_series(name: str, series: Any) -> ColumnSpec:
    return spec_of_arrow(pa.field(name, arrow_of_series(series).type))


def map_in_arrow(frame: Any, task: Any, schema: Any) -> Any:
    """Spark's ``mapInArrow``, after everything that ``task`` needs on the executors has been sent there.

    Tasks get GPUs where Spark has some. Columns with dots or backticks in their names, or whose names differ by case
    alone, Spark would not find: they go by their places.
    """
    spark, names = frame.sparkSession, tuple(frame.columns)
    ship_package(spark)
    task = WithoutTraceback(_light(task, spark))
    if any({".", "`"}.intersection(name) for name in names) or len({*map(str.casefold, names)}) < len(names):
        frame, task = frame.toDF(*(f"column_{place}" for place in range(len(names)))), WithNames(task, names)
    return frame.mapInArrow(task, schema, profile=profile_of(spark))


def _light(task: Any, spark: Any) -> Any:
    return replace(task, program=task.program.light(spark)) if hasattr(task, "program") else task


def select(frame: Any, names: Sequence[str]) -> Any:
    """The named columns, whatever characters are in their names."""
    return frame.select(*[quoted(name) for name in dict.fromkeys(names)])


def quoted(name: str) -> str:
    """A column's name as Spark parses it."""
    return "`" + name.replace("`", "``") + "`"
