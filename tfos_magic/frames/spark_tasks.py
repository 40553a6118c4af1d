"""What runs in Spark's Python workers: whole Arrow batches through traced functions, kept from task to task."""

from __future__ import annotations

import gc
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tfos_magic.columns.columns import BYTES
from tfos_magic.columns.row_buffer import reblocked
from tfos_magic.errors import DataError, UsageError
from tfos_magic.frames.arrow_blocks import RaggedRows, cell_shapes, from_numpy, to_numpy
from tfos_magic.frames.gpus import take_gpus
from tfos_magic.frames.inference.model_files import version_of
from tfos_magic.frames.specs import ColumnSpec, arrow_type
from tfos_magic.frames.tensor_function import BLOCKS, Program
from tfos_magic.lean import load_tensorflow
from tfos_magic.quiet import quiet_tensorflow

if TYPE_CHECKING:
    from tfos_magic.frames.graph.compiled import Compiled

_MOST_PROGRAMS = 16
_WHOLE_VECTORS = "--xla_cpu_prefer_vector_width=512"
_VECTOR_FLAG_IN = "2.21."
_NO_TENSORFLOW = (
    "TensorFlow is not installed here, so the function cannot be traced: install tensorflow-cpu where the executors "
    "run; in the notebook's environment a schema=… of the outputs is enough"
)

# Spark reuses its Python workers for later tasks, and this module's memory is all that they keep.
_programs: OrderedDict[str, tuple[list[str], Compiled]] = OrderedDict()


def compiled_for(program: Program) -> Compiled:
    """The traced program, from this process's memory if it has been traced before, of the files as they are now."""
    versions = [version_of(path) for path in program.files]
    if program.key not in _programs or _programs[program.key][0] != versions:
        _programs[program.key] = versions, _compile(program)
        if len(_programs) > _MOST_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(program.key)
    return _programs[program.key][1]


def _compile(program: Program) -> Compiled:
    try:
        with quiet_tensorflow():
            load_tensorflow()
            import tensorflow
    except ImportError:
        raise UsageError(_NO_TENSORFLOW) from None
    _fit_into_task(tensorflow)
    from tfos_magic.frames.graph.compiled import Compiled

    return Compiled(program)


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def _fit_into_task(tf: Any) -> None:
    """In a Spark task, take no more threads than the task has cores, and no GPU that Spark did not give it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or _programs:
        return
    take_gpus(context.resources())
    # Spark's worker collects garbage after every task, and would look through all of TensorFlow's objects each time.
    gc.freeze()
    use_whole_vectors(tf.__version__)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(context.cpus())
        tf.config.threading.set_inter_op_parallelism_threads(1)
        if "gpu" not in context.resources():
            tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # this worker has used TensorFlow for something else before: it is as it is
        return


def use_whole_vectors(version: str, cpuinfo: str = "/proc/cpuinfo") -> None:
    """Let XLA use the 512 bits that the processor has: exponentials take 0.6 of the time (benchmarks/kde.py).

    By default it keeps to 256 bits, for the sake of processors that slow down otherwise. XLA reads its flags when it
    first compiles, and ends the process over one that it does not know: so only where that flag is known to be there.
    """
    if "XLA_FLAGS" in os.environ or not version.startswith(_VECTOR_FLAG_IN):
        return
    with suppress(OSError), open(cpuinfo) as file:
        if " avx512f " in file.read():
            os.environ["XLA_FLAGS"] = _WHOLE_VECTORS


@dataclass(frozen=True)
class MapTask:
    """Maps one partition's Arrow batches, over blocks or rows.

    ``passed`` are the columns that go through as they are (none when trimming), ``columns`` those that are read.
    """

    program: Program
    columns: tuple[str, ...]
    passed: tuple[str, ...]
    outputs: tuple[ColumnSpec, ...]
    trim: bool
    block_rows: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        compiled = compiled_for(self.program).for_stream(_partition())
        _check_outputs(self.outputs, compiled.outputs)
        rows = self.block_rows or compiled.block_rows
        ragged = self.program.mode != BLOCKS and not all(spec.is_static for spec in self.program.inputs)
        for chunk in reblocked(batches, rows):
            yield (
                self._by_shape(compiled, chunk, rows)
                if ragged
                else self._batch(chunk, self._map(compiled, chunk, rows))
            )

    def _map(self, compiled: Compiled, chunk: pa.RecordBatch, rows: int) -> list[pa.Array]:
        """Give the outputs for a chunk, block by block."""
        blocks = [to_numpy(chunk.column(c), s) for c, s in zip(self.columns, self.program.inputs, strict=True)]
        pieces = []
        for start in range(0, chunk.num_rows, rows):
            size = min(rows, chunk.num_rows - start)
            made = compiled([block[start : start + size] for block in blocks], full=size == rows)
            _check_rows(made, None if self.trim else size)
            pieces.append(made)
        return [_joined([piece[spec.name] for piece in pieces], spec) for spec in self.outputs]

    def _by_shape(self, compiled: Compiled, chunk: pa.RecordBatch, rows: int) -> pa.RecordBatch:
        """Rows of different lengths: those of equal shape go together, and back into their places."""
        inputs = list(zip(self.columns, self.program.inputs, strict=True))
        shapes = np.column_stack([cell_shapes(chunk.column(column), spec) for column, spec in inputs])
        kinds, kind_of_row = np.unique(shapes, axis=0, return_inverse=True)
        order = np.argsort(kind_of_row.reshape(-1), kind="stable")
        bounds = np.cumsum([0, *np.bincount(kind_of_row.reshape(-1), minlength=len(kinds))])
        sorted_rows = chunk.take(pa.array(order))
        parts = [self._map(compiled, sorted_rows.slice(start, end - start), rows) for start, end in pairwise(bounds)]
        back = pa.array(np.argsort(order, kind="stable"))
        return self._batch(chunk, [pa.concat_arrays(arrays).take(back) for arrays in zip(*parts, strict=True)])

    def _batch(self, chunk: pa.RecordBatch, made: list[pa.Array]) -> pa.RecordBatch:
        arrays = [chunk.column(name) for name in self.passed] + made
        return pa.record_batch(arrays, [*self.passed, *(spec.name for spec in self.outputs)])


def _joined(values: list[Any], spec: ColumnSpec) -> pa.Array:
    if not any(isinstance(v, RaggedRows) for v in values) and len({value.shape[1:] for value in values}) == 1:
        return from_numpy(np.concatenate(values) if len(values) > 1 else values[0], spec)
    return pa.concat_arrays([from_numpy(value, spec) for value in values])


def _check_rows(made: dict[str, Any], rows: int | None) -> None:
    counts = {name: len(value) for name, value in made.items()}
    if rows is not None and any(count != rows for count in counts.values()):
        name, count = next((name, count) for name, count in counts.items() if count != rows)
        raise UsageError(
            f"output {name!r} has {count} rows for a block of {rows}: give one row for each, or say trim=True, which "
            "leaves the other columns out"
        )
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UsageError(f"the outputs disagree on rows ({said}): all need the same number")


def _check_outputs(declared: tuple[ColumnSpec, ...], made: tuple[ColumnSpec, ...]) -> None:
    """The schema that the user gave against what the function makes."""
    by_name = {spec.name: spec for spec in made}
    for spec in declared:
        if spec.name not in by_name:
            raise UsageError(
                f"the schema has {spec.name!r}, which the function does not return: it has {list(by_name)}"
            )
        other = by_name[spec.name]
        same_type = spec.dtype == BYTES == other.dtype or arrow_type(spec) == arrow_type(other)
        if not same_type or len(spec.shape) != len(other.shape):
            raise DataError(f"the schema has {spec.name!r} as {spec.describe()}, the function makes {other.describe()}")
    extra = [name for name in by_name if name not in {spec.name for spec in declared}]
    if extra:
        raise UsageError(f"the function returns {extra[0]!r}, which the schema lacks: add it there")
