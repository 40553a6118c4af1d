"""Reductions of a whole DataFrame to one row: within partitions first, then of what they gave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tfos_magic.columns.row_buffer import reblocked
from tfos_magic.errors import DataError
from tfos_magic.frames.arrow_blocks import from_numpy, to_numpy
from tfos_magic.frames.checks.reducers import ReducerCheck
from tfos_magic.frames.source import source_of
from tfos_magic.frames.spark_tasks import compiled_for
from tfos_magic.frames.tensor_function import REDUCE_BLOCKS, REDUCE_ROWS, Program, TensorFunction, reduce_program

_FEWEST_ROWS = 2


def reduce_blocks(
    function: TensorFunction,
    frame: Any,
    *,
    feed_dict: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    block_rows: int | None = None,
    xla: bool | None = None,
) -> Any:
    """Reduce columns to one cell each, at once: ``lambda x_input: {"x": tf.reduce_sum(x_input, axis=0)}``.

    ``x_input`` is a tensor of shape ``(rows, *cell)``, ``x`` one of shape ``cell`` and the same dtype, since the
    function reduces its own results too; for any cut into blocks it must give the same. Gives the value of ``x``, or
    for several outputs a dict of them by name, as NumPy. Parameters are those of :func:`map_blocks`.

    Raises :class:`DataError` when there are no rows, and what :func:`map_blocks` raises.
    """
    return _reduce(REDUCE_BLOCKS, function, frame, feed_dict, constants, block_rows, xla)


def reduce_rows(
    function: TensorFunction,
    frame: Any,
    *,
    feed_dict: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    block_rows: int | None = None,
    xla: bool | None = None,
) -> Any:
    """As :func:`reduce_blocks`, with a function of two rows: ``lambda x_1, x_2: {"x": x_1 + x_2}``.

    It must be associative and commutative. Neighbours are reduced in pairs, all pairs of a block at once.
    """
    return _reduce(REDUCE_ROWS, function, frame, feed_dict, constants, block_rows, xla)


def _reduce(
    mode: str,
    function: TensorFunction,
    frame: Any,
    feed_dict: Mapping[str, str] | None,
    constants: Mapping[str, Any] | None,
    block_rows: int | None,
    xla: bool | None,
) -> Any:
    source = source_of(frame)
    reading = reduce_program(mode, function, source.specs, feed_dict, constants, xla)
    program = reading.program
    names = tuple(spec.name for spec in program.inputs)
    first = FoldTask(program, reading.columns, block_rows)
    batches = source.fold(first, program.inputs, reading.columns, FoldTask(program, names, block_rows))
    if not batches:
        raise DataError("there are no rows to reduce: the DataFrame is empty, and a reducer alone has no zero")
    cells = {spec.name: to_numpy(batches[0].column(spec.name), spec)[0] for spec in program.inputs}
    return cells if len(cells) > 1 else next(iter(cells.values()))


@dataclass(frozen=True)
class FoldTask:
    """Reduces one partition to one row, or to none where it is empty. Memory is that of a block."""

    program: Program
    columns: tuple[str, ...]
    block_rows: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        compiled = compiled_for(self.program)
        rows = max(_FEWEST_ROWS, self.block_rows or compiled.block_rows)
        check = ReducerCheck(compiled, self.program)
        made: list[dict[str, Any]] = []
        for chunk in reblocked(batches, rows):
            blocks = [to_numpy(chunk.column(c), s) for c, s in zip(self.columns, self.program.inputs, strict=True)]
            for start in range(0, chunk.num_rows, rows):
                block = [values[start : start + rows] for values in blocks]
                check(block)
                made.append(compiled(block, full=len(block[0]) == rows))
                if len(made) == rows:
                    made = [compiled(self._stacked(made), full=True)]
        if made:
            last = compiled(self._stacked(made)) if len(made) > 1 else made[0]
            arrays = [from_numpy(last[spec.name][np.newaxis], spec) for spec in self.program.inputs]
            yield pa.record_batch(arrays, [spec.name for spec in self.program.inputs])

    def _stacked(self, made: list[dict[str, Any]]) -> list[Any]:
        return [np.stack([each[spec.name] for each in made]) for spec in self.program.inputs]
