"""What a fed dataset gives: columns that were chosen, put together from the flat tensors of each batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf

from tfos_magic.columns.columns import BYTES, STRUCT, Column, field_column
from tfos_magic.columns.numpy_arrays import settled_shape
from tfos_magic.columns.selection import Selection
from tfos_magic.errors import DataError

T = TypeVar("T")


class Elements:
    """The batches of a dataset over columns of a settled ``schema``.

    An element is what the ``selection`` says. ``rows`` is how many all batches have, where that is known.
    ``requested_columns`` are the columns in the order in which :attr:`specs` describe the flat tensors that
    :func:`~tfos_magic.columns.numpy_arrays.tensor_arrays` makes of them. Raises :class:`DataError` for a column that is
    not there.
    """

    def __init__(
        self,
        schema: pa.Schema,
        selection: Selection,
        rows: int | None = None,
    ) -> None:
        known = list(schema.names)
        self._selection = selection
        self._names = selection.features_of(known)
        self.requested_columns = [*self._names, *selection.targets]
        for name in self.requested_columns:
            if name not in known:
                raise DataError(
                    f"this feed has no column {name!r}: it has {', '.join(map(repr, known))}; feed again with that "
                    "column"
                )
        self._columns = [field_column(schema.field(name)) for name in self.requested_columns]
        self.schema = pa.schema([schema.field(name) for name in self.requested_columns])
        self.specs = [spec for column in self._columns for spec in _flat_specs(column, rows)]

    def assembled(self, tensors: Iterable[tf.Tensor]) -> Any:
        """Give an element, in a graph, from flat tensors: of dense and ragged ones, and dicts of them for structs."""
        tensors = list(tensors)
        for tensor, spec in zip(tensors, self.specs, strict=True):
            tensor.set_shape(spec.shape)
        flat = iter(tensors)
        columns = {
            name: _assembled(column, flat) for name, column in zip(self.requested_columns, self._columns, strict=True)
        }
        targets = [columns[name] for name in self._selection.targets]
        if self._selection.matrix:
            matrix = tf.concat([_as_matrix(columns[name], name) for name in self._names], axis=1)
            return (matrix, *targets) if targets else matrix
        if not targets:
            return columns
        features = columns[self._names[0]] if len(self._names) == 1 else {name: columns[name] for name in self._names}
        return (features, *targets)

    def dataset(self, epoch: Callable[[], Iterator[Sequence[npt.NDArray[Any]]]]) -> tf.data.Dataset:
        """A dataset of which every iterator calls ``epoch`` for the flat arrays of its batches."""

        def generate() -> Iterator[tuple[npt.NDArray[Any], ...]]:
            return map(tuple, epoch())

        @tf.autograph.experimental.do_not_convert
        def assemble(*tensors: tf.Tensor) -> Any:
            return self.assembled(tensors)

        return tf.data.Dataset.from_generator(generate, output_signature=tuple(self.specs)).map(assemble)


def check_batch_size(batch_size: int) -> None:
    """Raise :class:`DataError` for batches without rows."""
    if batch_size < 1:
        raise DataError(f"the batch size is {batch_size}: it must be at least 1")


def held_weakly(source: T, what: str) -> Callable[[], T]:
    """Give a function that gives ``source`` while it is there; it raises :class:`DataError` afterwards.

    TensorFlow ties a Python function to the process's default graph for good, so it must not hold what holds a file.
    Whoever calls this lets the dataset hold it: those made from the dataset, and their iterators, keep that.
    """
    held = weakref.ref(source)

    def alive() -> T:
        if (referent := held()) is None:
            raise DataError(f"the dataset of {what} is gone while still being read: keep it in a variable")
        return referent

    return alive


def _assembled(column: Column, flat: Iterator[tf.Tensor]) -> Any:
    if column.kind == STRUCT:
        return {each.name: _assembled(each, flat) for each in column.fields}
    values = next(flat)
    splits = [next(flat) for _ in range(column.ragged_rank)]
    return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False) if splits else values


def _as_matrix(column: Any, name: str) -> tf.Tensor:
    """A column as float32 of the shape (rows, width)."""
    if isinstance(column, tf.RaggedTensor) or column.shape.rank > 2:
        raise DataError(
            f"a matrix takes numbers and lists of one length, but those of column {name!r} differ: pad them with "
            "--pad, or omit the column"
        )
    values = tf.cast(column, tf.float32)
    return values if values.shape.rank == 2 else values[:, tf.newaxis]


def _flat_specs(column: Column, rows: int | None) -> list[tf.TensorSpec]:
    if column.kind == STRUCT:
        return [spec for each in column.fields for spec in _flat_specs(each, rows)]
    dtype = tf.string if column.dtype == BYTES else tf.as_dtype(column.dtype)
    shape = settled_shape(column) if column.is_list else ()
    if not (ragged := column.ragged_rank):
        return [tf.TensorSpec([rows, *shape], dtype, column.name)]
    counts = [None if rows is None else rows + 1] + [None] * (ragged - 1)
    splits = [tf.TensorSpec([count], tf.int64, f"{column.name}/splits{level}") for level, count in enumerate(counts)]
    return [tf.TensorSpec([None, *shape[ragged:]], dtype, column.name), *splits]
