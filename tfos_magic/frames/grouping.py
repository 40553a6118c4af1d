"""Reductions by group: partial results in each partition, one shuffle of those, then the groups one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfos_magic.columns.row_buffer import joined
from tfos_magic.errors import UsageError
from tfos_magic.frames.arrow_blocks import from_numpy, to_numpy
from tfos_magic.frames.checks.reducers import ReducerCheck
from tfos_magic.frames.group_keys import grouping_of
from tfos_magic.frames.spark_tasks import compiled_for
from tfos_magic.frames.tensor_function import AGGREGATE, Program, TensorFunction, reduce_program

_CHUNK_ROWS, _CHUNK_BYTES = 1 << 18, 64 << 20
_ROW = "__row"


def aggregate(
    function: TensorFunction,
    grouped: Any,
    *,
    feed_dict: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Any:
    """Reduce columns to one cell for each group: ``aggregate(lambda x_input: {"x": …}, df.groupBy("key"))``.

    The function is that of :func:`reduce_blocks`. Gives a DataFrame of the keys and the outputs: of Spark, lazily, or
    of pandas for ``df.groupby("key")``, at once and sorted by key. Groups may be many: those of a partition are reduced
    together, and partial results alone are shuffled.

    Raises :class:`DataError` and :class:`UsageError` as :func:`reduce_blocks` does.
    """
    grouping = grouping_of(grouped)
    reading = reduce_program(AGGREGATE, function, grouping.source.specs, feed_dict, constants, False)
    program = reading.program
    _refuse_taken(program, grouping.names)
    compiled_for(program)
    read = dict(zip((spec.name for spec in program.inputs), reading.columns, strict=True))
    tasks = [GroupTask(program, grouping.names, final) for final in (False, True)]
    return grouping.run(read, program.inputs, *tasks)


def _refuse_taken(program: Program, keys: tuple[str, ...]) -> None:
    folded = {key.casefold() for key in keys}
    taken = [spec.name for spec in program.inputs if spec.name.casefold() in folded]
    if taken:
        raise UsageError(f"output {taken[0]!r} is the name of a group key: feed_dict gives it another name")


@dataclass(frozen=True)
class GroupTask:
    """Reduces the groups of one partition.

    Not ``final``: rows come in any order, and a group may be given several times, so that memory stays bounded.
    ``final``: rows come sorted by key, and each group is given once.
    """

    program: Program
    keys: tuple[str, ...]
    final: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: pa.RecordBatch | None = None
        check = ReducerCheck(compiled_for(self.program), self.program)
        for chunk in _chunks(batches):
            # Spark's fields say more than types (nullability, names within lists); what is joined must be the same.
            chunk = pa.record_batch(chunk.columns, chunk.schema.names)
            groups = self._reduced(chunk if held is None else joined([held.cast(chunk.schema), chunk]), check)
            done = self._done(groups)
            if done:
                yield groups.slice(0, done)
            held = groups.slice(done)
        if held is not None and held.num_rows:
            yield held

    def _done(self, groups: pa.RecordBatch) -> int:
        """How many groups need not wait for more rows."""
        if self.final:
            return int(groups.num_rows - 1)
        return int(groups.num_rows) if groups.num_rows > _CHUNK_ROWS // 2 else 0

    def _reduced(self, chunk: pa.RecordBatch, check: ReducerCheck) -> pa.RecordBatch:
        """One row for each group in the chunk, in the order in which they first come."""
        table = pa.Table.from_arrays([chunk.column(key) for key in self.keys], list(self.keys))
        table = table.append_column(_ROW, pa.array(np.arange(chunk.num_rows)))
        groups = table.group_by(list(self.keys), use_threads=False).aggregate([(_ROW, "list")]).combine_chunks()
        rows = groups.column(f"{_ROW}_list").combine_chunks()
        counts = pc.list_value_length(rows).to_numpy(zero_copy_only=False).astype(np.int64)
        order = rows.flatten().to_numpy()
        values = [to_numpy(chunk.column(spec.name), spec)[order] for spec in self.program.inputs]
        check(values)
        made = reduced_segments(compiled_for(self.program), self.program, values, counts)
        arrays = [groups.column(key).combine_chunks() for key in self.keys]
        arrays += [from_numpy(made[spec.name], spec) for spec in self.program.inputs]
        return pa.record_batch(arrays, [*self.keys, *(spec.name for spec in self.program.inputs)])


def reduced_segments(compiled: Any, program: Program, values: list[Any], counts: Any) -> dict[str, Any]:
    """Reduce consecutive segments of ``counts`` rows, none empty, to one row each.

    A segment is cut into pieces whose lengths are the powers of two in its count, and pieces of one length, of all
    segments, are reduced in one call. What is left are a few rows for each segment, which are cut again.
    """
    while True:
        pieces, starts = _pieces(counts)
        lengths = np.repeat(1 << np.arange(len(pieces)), [len(each) for each in pieces])
        owner, start = np.concatenate(pieces), np.concatenate(starts)
        order = np.lexsort((start, owner))
        made = []
        for length in np.unique(lengths):
            rows = start[lengths == length][:, np.newaxis] + np.arange(length)
            made.append(compiled([block[rows] for block in values]))
        values = [np.concatenate([each[spec.name] for each in made])[order] for spec in program.inputs]
        counts = np.bincount(owner, minlength=len(counts))
        if counts.max() == 1:
            return {spec.name: block for spec, block in zip(program.inputs, values, strict=True)}


def _pieces(counts: Any) -> tuple[list[Any], list[Any]]:
    """For each power of two: the segments that have a piece of this length, and where those pieces start."""
    ends = np.cumsum(counts)
    position = ends - counts
    owners, starts = [], []
    for bit in range(int(counts.max()).bit_length()):
        having = np.flatnonzero(counts >> bit & 1)
        owners.append(having)
        starts.append(position[having])
        position = position + ((counts >> bit & 1) << bit)
    return owners, starts


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Larger batches: the more rows at once, the fewer calls for each group."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield joined(held)
