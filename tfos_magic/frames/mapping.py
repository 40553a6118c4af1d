"""Tensor functions over rows and blocks of a DataFrame, as in TensorFrames (Databricks, 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.frames.source import source_of
from tfos_magic.frames.spark_tasks import MapTask, compiled_for
from tfos_magic.frames.specs import ColumnSpec
from tfos_magic.frames.tensor_function import BLOCKS, ROWS, TensorFunction, map_program


def map_blocks(
    function: TensorFunction,
    frame: Any,
    *,
    trim: bool = False,
    feed_dict: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    schema: Any = None,
    block_rows: int | None = None,
    xla: bool | None = None,
) -> Any:
    """Add to ``frame`` the columns that ``function`` makes from blocks of its rows; lazy where Spark is.

    Parameters
    ----------
    function: its parameters name columns, each a tensor of shape ``(rows, *cell)``; it returns outputs by name, of the
        same number of rows: ``lambda x: {"z": x + 3}``. It may close over arrays, tf.Variables and Keras models. It
        must give the same for any cut into blocks. It is traced as a ``tf.function``, without AutoGraph.
    frame: a Spark DataFrame, classic or Connect, or a pandas one (computed at once, in this process).
    trim: give the outputs alone, with as many rows as the function makes of each block.
    feed_dict: column by parameter, where their names differ.
    constants: arrays by parameter, sent once and not with each block.
    schema: the outputs as DDL text or ``StructType``; then nothing is traced here, and no TensorFlow is needed here.
    block_rows: rows in a block; by default as many as keep the function's widest tensor in a core's cache. The last
        block of a partition may be shorter.
    xla: compile full blocks with XLA, or not; by default where it pays and where it gives the same.

    Raises :class:`DataError` for columns and :class:`UsageError` for functions that cannot be used.
    """
    return _map(BLOCKS, function, frame, trim, feed_dict, constants, schema, block_rows, xla)


def map_rows(
    function: TensorFunction,
    frame: Any,
    *,
    trim: bool = False,
    feed_dict: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    schema: Any = None,
    block_rows: int | None = None,
    xla: bool | None = None,
) -> Any:
    """As :func:`map_blocks`, with a function of one row: each parameter is a tensor of the cell's shape.

    All rows of a block are computed at once. Cells may differ in shape from row to row: rows of one shape go together.
    Where what the function makes of rows of one shape differs in shape, as the words of a text do, rows are computed
    one after another, which is slower; ``map_blocks`` with ``tf.strings.split(text).row_lengths()`` is fast.
    """
    return _map(ROWS, function, frame, trim, feed_dict, constants, schema, block_rows, xla)


def _map(
    mode: str,
    function: TensorFunction,
    frame: Any,
    trim: bool,
    feed_dict: Mapping[str, str] | None,
    constants: Mapping[str, Any] | None,
    schema: Any,
    block_rows: int | None,
    xla: bool | None,
) -> Any:
    if block_rows is not None and block_rows < 1:
        raise UsageError(f"block_rows is {block_rows}: a block has at least one row")
    source = source_of(frame)
    reading = map_program(mode, function, source.specs, feed_dict, constants, xla)
    outputs = compiled_for(reading.program).outputs if schema is None else source.parse(schema)
    passed = () if trim else tuple(source.specs)
    _refuse_taken(outputs, passed)
    task = MapTask(reading.program, reading.columns, passed, outputs, trim, block_rows)
    return source.run(task, passed, outputs, reading.columns)


def _refuse_taken(outputs: Sequence[ColumnSpec], passed: Sequence[str]) -> None:
    taken = {name.casefold(): name for name in passed}
    for spec in outputs:
        if spec.name.casefold() in taken:
            raise UsageError(
                f"output {spec.name!r} is the name of a column ({taken[spec.name.casefold()]!r}): name it otherwise, "
                "drop the column first, or use trim=True, which leaves the columns out"
            )
