"""Shapes of columns: learnt from the data, declared, shown. They live in the columns' metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.columns.schema_plan import suggestion
from tfos_magic.columns.vectors import vector_values
from tfos_magic.errors import DataError, UsageError
from tfos_magic.frames.source import SparkSource, source_of
from tfos_magic.frames.specs import ColumnSpec, Shape, shapes_fit

_FEWEST, _MOST = "fewest", "most"


def analyze(frame: Any) -> Any:
    """Learn the shapes of all cells with one pass over the data; a length that differs becomes unknown.

    Gives the Spark DataFrame with shapes in its columns' metadata; later maps use them, and check them.
    """
    source = _spark(frame)
    specs = {name: spec for name, spec in _tensor_columns(source).items() if spec.shape}
    if not specs:
        return frame
    bounds = [
        ColumnSpec(f"{kind}{i}", "int64", (len(s.shape),))
        for i, s in enumerate(specs.values())
        for kind in (_FEWEST, _MOST)
    ]
    rows = source.run(_LengthsTask(tuple(specs), tuple(specs.values())), (), bounds, list(specs)).collect()
    for i, spec in enumerate(specs.values()):
        fewest = [row[f"{_FEWEST}{i}"] for row in rows]
        most = [row[f"{_MOST}{i}"] for row in rows]
        frame = _with_shape(frame, replace(spec, shape=_agreed(fewest, most, len(spec.shape))))
    return frame


def append_shape(frame: Any, column: str, shape: Sequence[int | None]) -> Any:
    """Declare the shape of a column's cells, None where a length is unknown; the data are checked when they are read.

    Raises :class:`DataError` where the column is missing or cannot have this shape.
    """
    source = _spark(frame)
    if column not in source.specs:
        raise DataError(f"the DataFrame has no column {column!r}. {suggestion(column, list(source.specs))}")
    spec = source.specs[column]()
    declared = replace(spec, shape=tuple(shape))
    if not shapes_fit(spec.shape, declared.shape):
        raise DataError(
            f"column {column!r} is {spec.describe()} and cannot have cells of {declared.describe(rows=False)}"
        )
    return _with_shape(frame, declared)


def explain(frame: Any) -> str:
    """The columns of a Spark or pandas DataFrame as tensors: name, dtype and shape of a block, or why it is none."""
    lines = ["root"]
    for name, spec in source_of(frame).specs.items():
        try:
            lines.append(f" |-- {name}: {spec().describe()}")
        except DataError as error:
            lines.append(f" |-- {name}: no tensor ({error})")
    return "\n".join(lines)


def print_schema(frame: Any) -> None:
    """Print what :func:`explain` says."""
    print(explain(frame))


@dataclass(frozen=True)
class _LengthsTask:
    """The fewest and the most values along each axis of each column, one row for a partition with rows."""

    columns: tuple[str, ...]
    specs: tuple[ColumnSpec, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch_lengths: list[Any] = []
        for batch in batches:
            lengths = [self._lengths(batch.column(c), s) for c, s in zip(self.columns, self.specs, strict=True)]
            batch_lengths.append(lengths)
        if not batch_lengths:
            return
        arrays = []
        for column in zip(*batch_lengths, strict=True):
            arrays.append(np.min([fewest for fewest, _ in column], axis=0))
            arrays.append(np.max([most for _, most in column], axis=0))
        names = [f"{kind}{i}" for i in range(len(self.columns)) for kind in (_FEWEST, _MOST)]
        yield pa.record_batch([pa.array([array.tolist()], pa.list_(pa.int64())) for array in arrays], names)

    def _lengths(self, array: pa.Array, spec: ColumnSpec) -> Any:
        array = array.drop_null()
        if spec.vector:
            array = vector_values(array)
        bounds = []
        for _ in spec.shape:
            lengths = pc.min_max(pc.list_value_length(array)).as_py()
            # Without a value, an axis is bound by nothing: the fewest is more than the most.
            bounds.append((np.iinfo(np.int64).max if lengths["min"] is None else lengths["min"], lengths["max"] or 0))
            array = array.flatten()
        return np.array(bounds).T


def _agreed(fewest: list[list[int]], most: list[list[int]], rank: int) -> Shape:
    if not fewest:
        return (None,) * rank
    low, high = np.min(fewest, axis=0), np.max(most, axis=0)
    return tuple(int(least) if least == greatest else None for least, greatest in zip(low, high, strict=True))


def _tensor_columns(source: SparkSource) -> dict[str, ColumnSpec]:
    columns = {}
    for name, spec in source.specs.items():
        try:
            columns[name] = replace(spec(), shape=(None,) * len(spec().shape))
        except DataError:  # no function can read it, so nobody asks for its shape
            continue
    return columns


def _with_shape(frame: Any, spec: ColumnSpec) -> Any:
    kept = frame.schema[spec.name].metadata or {}
    return frame.withMetadata(spec.name, {**kept, **spec.metadata()})


def _spark(frame: Any) -> SparkSource:
    source = source_of(frame)
    if not isinstance(source, SparkSource):
        raise UsageError("shapes are kept in the metadata of Spark's columns: pandas DataFrames have none")
    return source
