"""Tasks around tasks in Spark's Python workers: errors of this package come without Spark's long account of them, and
columns have their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tfos_magic.errors import TFOSError, UsageError
from tfos_magic.frames.specs import ColumnSpec, arrow_type, field_of_spec
from tfos_magic.spark.failures import own_error

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_REFUSAL = "__refusal"


@dataclass(frozen=True)
class WithoutTraceback:
    """A task whose errors of this package come without the frames that raised them."""

    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.task(batches)
        except TFOSError:
            # Spark asks for it when it tells of this error, and ends this process then.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise


@dataclass(frozen=True)
class WithNames:
    """A task on batches whose columns have the ``names`` that it knows them by."""

    task: Task
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


@dataclass(frozen=True)
class TellingRefusals:
    """A task that makes columns ``made``, and a row that tells of it where it refuses its function.

    Every task refuses it in its first block, which Spark would log, and try again. Such rows of another task before
    this one are told too.
    """

    task: Task
    made: tuple[ColumnSpec, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self.task(without_refusals(batches)):
                yield self._with_refusals(batch.columns, pa.nulls(batch.num_rows, pa.string()))
        except UsageError as error:
            yield self._with_refusals([pa.nulls(1, _type(spec)) for spec in self.made], pa.array([str(error)]))

    def _with_refusals(self, columns: list[pa.Array], refusals: pa.Array) -> pa.RecordBatch:
        return pa.record_batch([*columns, refusals], [*(spec.name for spec in self.made), _REFUSAL])


def without_refusals(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without the column that tells of refusals. Raises :class:`UsageError` for the first one there is."""
    for batch in batches:
        if _REFUSAL in batch.schema.names:
            refusals = batch.column(_REFUSAL).drop_null()
            if len(refusals):
                raise UsageError(refusals[0].as_py())
            batch = batch.select([name for name in batch.schema.names if name != _REFUSAL])
        yield batch


def fields_of_told(made: Sequence[ColumnSpec]) -> list[Any]:
    """Spark's fields of what :class:`TellingRefusals` gives."""
    from pyspark.sql.types import StringType, StructField

    return [*(field_of_spec(spec) for spec in made), StructField(_REFUSAL, StringType())]


class told_plainly:
    """Raise this package's own errors as they were in the worker, in place of Spark's long account of them."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, TFOSError):
            return
        if (package_error := own_error(error)) is not None:
            raise package_error from None


def _type(spec: ColumnSpec) -> Any:
    kind = arrow_type(spec)
    for _ in spec.shape:
        kind = pa.list_(kind)
    return kind
