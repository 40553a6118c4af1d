"""The rows of a spooled feed, read where they lie. Runs of rows are Arrow record batches until they become tensors."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tensorflow as tf

from tfos_magic.errors import FeedError
from tfos_magic.records.arrow import column_values, field_dtype
from tfos_magic.records.columns import decode_schema


class SpooledRows:
    """The rows of a committed feed on one rank, mapped into memory; addressed by their index in this rank's order."""

    def __init__(self, handle: dict[str, Any]) -> None:
        self.schema = decode_schema(handle["schema"])
        self._map = pa.py_buffer(_map_file(handle["path"], bytes.fromhex(handle["mark"])))
        self._blocks = np.array(handle["blocks"], dtype=np.int64).reshape(-1, 4)
        self._starts = np.concatenate([[0], np.cumsum(self._blocks[:, 3])])
        self._batches: list[pa.RecordBatch | None] = [None] * len(self._blocks)

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)

    def read(self, names: Sequence[str], start: int, stop: int) -> pa.RecordBatch:
        """Give rows ``[start, stop)`` of the named columns; a view of the file where they lie in one block."""
        if stop <= start:
            return pa.RecordBatch.from_pylist([], schema=pa.schema([self.schema.field(name) for name in names]))
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        parts = []
        for index in range(first, last):
            at = int(self._starts[index])
            begin = max(0, start - at)
            parts.append(self._block(index).select(list(names)).slice(begin, stop - at - begin))
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _block(self, index: int) -> pa.RecordBatch:
        batch = self._batches[index]
        if batch is None:
            offset, size, first, rows = self._blocks[index].tolist()
            batch = pa.ipc.read_record_batch(self._map.slice(offset, size), self.schema).slice(first, rows)
            self._batches[index] = batch
        return batch


def tensor_specs(schema: pa.Schema, names: Sequence[str], rows: int | None) -> list[tf.TensorSpec]:
    """Shape and dtype of the tensors that ``rows`` rows (``None``: any number) of the named wire columns become."""
    return [_spec(schema.field(name), rows) for name in names]


def tensor_arrays(batch: pa.RecordBatch) -> list[npt.NDArray[Any]]:
    """Give a wire batch as NumPy arrays, one for each of its :func:`tensor_specs`; numbers are not copied."""
    arrays = (
        column_values(array, field_dtype(field)) for field, array in zip(batch.schema, batch.columns, strict=True)
    )
    return [array.to_numpy(zero_copy_only=False) if isinstance(array, pa.Array) else array for array in arrays]


def assemble(names: Sequence[str], specs: Sequence[tf.TensorSpec], tensors: Sequence[tf.Tensor]) -> dict[str, Any]:
    """Give the columns by name, in a graph, from tensors as :func:`tensor_arrays` gave them."""
    for tensor, spec in zip(tensors, specs, strict=True):
        tensor.set_shape(spec.shape)
    return dict(zip(names, tensors, strict=True))


def _spec(field: pa.Field, rows: int | None) -> tf.TensorSpec:
    dtype = field_dtype(field)
    width = [field.type.list_size] if pa.types.is_fixed_size_list(field.type) else []
    return tf.TensorSpec([rows, *width], tf.string if dtype == "bytes" else tf.as_dtype(dtype), field.name)


def _map_file(path: str, mark: bytes) -> mmap.mmap:
    """Map the spool's file for reading, after a look that the path still leads to it."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise FeedError(f"the rows of this feed are gone ({error}): run the cell again to feed them anew") from error
    if mapped[: len(mark)] != mark:
        raise FeedError("the rows of this feed were released: run the cell again to feed them anew")
    return mapped
