"""Rows of a spool in any order, copied straight from where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfos_magic.columns.arrow import take_rows
from tfos_magic.columns.numpy_arrays import tensor_arrays
from tfos_magic.feed.trainer.shuffle_order import Numbers
from tfos_magic.feed.trainer.spooled_rows import SpooledRows


class RowGather:
    """Takes rows of the named columns by their numbers, from all blocks of a spool at once.

    A column of numbers is found by address: its tensors' rows have one size and lie in the mapped file, so NumPy copies
    them in one go, whatever blocks they are in. Other columns are taken block by block with Arrow.
    """

    def __init__(self, rows: SpooledRows, names: Sequence[str]) -> None:
        self._rows, self._names = rows, list(names)
        self._columns: dict[str, _Addresses | None] = {}

    def take(self, numbers: Numbers) -> list[npt.NDArray[Any]]:
        """Give rows as :func:`~tfos_magic.columns.numpy_arrays.tensor_arrays` gives a batch of them, in the order
        of numbers."""
        blocks = np.searchsorted(self._rows.starts, numbers, side="right") - 1
        inside = numbers - self._rows.starts[blocks]
        taken = {name: self._by_address(name, blocks, inside) for name in self._names}
        others = [name for name, arrays in taken.items() if arrays is None]
        if others:
            batch = self._by_block(others, blocks, inside)
            taken.update((name, tensor_arrays(batch.select([name]))) for name in others)
        return [array for name in self._names for array in taken[name] or ()]

    def _by_address(self, name: str, blocks: Numbers, inside: Numbers) -> list[npt.NDArray[Any]] | None:
        if not len(blocks):
            return None
        if name not in self._columns:
            self._columns[name] = _Addresses.of(self._rows, name, int(blocks[0]))
        addresses = self._columns[name]
        if addresses is None or not addresses.learn(blocks):
            self._columns[name] = None
            return None
        return addresses.take(blocks, inside)

    def _by_block(self, names: list[str], blocks: Numbers, inside: Numbers) -> pa.RecordBatch:
        if not len(blocks):
            return self._rows.read(names, 0, 0)
        order = np.lexsort((inside, blocks))
        cuts = np.flatnonzero(np.diff(blocks[order])) + 1
        parts = [
            take_rows(self._rows.block(int(blocks[run[0]])).select(names), inside[run]) for run in np.split(order, cuts)
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return take_rows(pa.concat_batches(parts), back)


class _Addresses:
    """Where each block's rows of one column begin in the mapped file, for each of the column's flat arrays."""

    def __init__(self, rows: SpooledRows, name: str, arrays: list[npt.NDArray[Any]]) -> None:
        self._rows, self._name = rows, name
        self._shapes = [(array.dtype, array.shape[1:], _row_bytes(array)) for array in arrays]
        self._views = [_overlapping(rows.memory, size) for _, _, size in self._shapes]
        self._offsets = np.full((len(arrays), len(rows.starts) - 1), -1, np.int64)

    @classmethod
    def of(cls, rows: SpooledRows, name: str, block: int) -> _Addresses | None:
        """The addresses of a column, or ``None`` where ``block`` shows that its tensors do not lie in the file."""
        batch = rows.block(block).select([name])
        arrays = tensor_arrays(batch)
        return cls(rows, name, arrays) if _in_place(arrays, batch.num_rows, rows.memory) else None

    def learn(self, blocks: Numbers) -> bool:
        """Find the addresses in blocks that are new; False when a column's tensors do not lie there as in others."""
        offsets = self._offsets[0]
        return all(self._find(int(block)) for block in np.unique(blocks[offsets[blocks] < 0]))

    def take(self, blocks: Numbers, inside: Numbers) -> list[npt.NDArray[Any]]:
        return [
            view[offsets[blocks] + inside * size].view(dtype).reshape(-1, *shape)
            for view, offsets, (dtype, shape, size) in zip(self._views, self._offsets, self._shapes, strict=True)
        ]

    def _find(self, block: int) -> bool:
        batch = self._rows.block(block).select([self._name])
        arrays = tensor_arrays(batch)
        if not _in_place(arrays, batch.num_rows, self._rows.memory):
            return False
        if [(array.dtype, array.shape[1:], _row_bytes(array)) for array in arrays] != self._shapes:
            return False
        self._offsets[:, block] = [_address(array) - self._rows.memory.address for array in arrays]
        return True


def _in_place(arrays: list[npt.NDArray[Any]], rows: int, memory: pa.Buffer) -> bool:
    """Whether each array has one entry of numbers for each row, one after another, in ``memory``."""
    return all(
        array.dtype != np.object_
        and array.ndim > 0
        and len(array) == rows
        and array.flags.c_contiguous
        and _row_bytes(array) > 0
        and memory.address <= _address(array)
        and _address(array) + array.nbytes <= memory.address + memory.size
        for array in arrays
    )


def _row_bytes(array: npt.NDArray[Any]) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _overlapping(memory: pa.Buffer, size: int) -> npt.NDArray[np.void]:
    """View ``memory`` as entries of ``size`` bytes, one beginning at each byte of it."""
    return np.ndarray((memory.size - size + 1,), np.dtype((np.void, size)), memory, strides=(1,))
