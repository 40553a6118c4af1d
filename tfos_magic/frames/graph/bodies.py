"""The graph of each operation, made of the user's function: over a block, over each row, over pairs, over groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.columns.columns import BYTES
from tfos_magic.errors import UsageError
from tfos_magic.frames.specs import ColumnSpec
from tfos_magic.frames.tensor_function import AGGREGATE, BLOCKS, REDUCE_BLOCKS, REDUCE_ROWS, ROWS, Program

Body = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Function:
    """The user's function over tensors in the order of the parameters; what it returns is checked.

    ``check`` is called with blocks before it. One that ``is_of_rows`` is to make the same of a row beside any others.
    """

    call: Body
    check: Callable[[Sequence[Any]], None]
    is_of_rows: bool


def load(program: Program) -> Function:
    """The function of a program, ready to be traced."""
    function, constants = program.load()
    getattr(function, "prepare", lambda: None)()
    values = {name: _constant(value, program.inputs) for name, value in constants.items()}

    def call(*inputs: Any) -> dict[str, Any]:
        return _outputs(function(**dict(zip(program.params, inputs, strict=True)), **values))

    check = getattr(function, "check_blocks", lambda blocks: None)
    return Function(call, check, getattr(function, "is_of_rows", False))


def body_of(program: Program, call: Body) -> Body:
    """What runs on blocks with a leading dimension of rows; for groups, of groups and rows."""
    return {
        BLOCKS: lambda: call,
        ROWS: lambda: vectorised(call),
        REDUCE_BLOCKS: lambda: call,
        REDUCE_ROWS: lambda: _over_pairs(program, call),
        AGGREGATE: lambda: vectorised(call),
    }[program.mode]()


def cell_signature(program: Program) -> list[Any]:
    """Signature of one call of the user's function."""
    cells = [(spec.shape, _tf_dtype(spec.dtype)) for spec in program.inputs]
    if program.mode == REDUCE_ROWS:
        cells = [cell for cell in cells for _ in (1, 2)]
    leading = (None,) if program.mode in (BLOCKS, REDUCE_BLOCKS, AGGREGATE) else ()
    return [tf.TensorSpec([*leading, *shape], dtype) for shape, dtype in cells]


def body_signature(program: Program) -> list[Any]:
    """Signature of the body, lengths unknown where they may differ."""
    leading = (None, None) if program.mode == AGGREGATE else (None,)
    return [tf.TensorSpec([*leading, *spec.shape], _tf_dtype(spec.dtype)) for spec in program.inputs]


def vectorised(call: Body) -> Body:
    """``call`` for every index of the first dimension at once, by TensorFlow's parallel for (Agarwal, 2019)."""

    def body(*blocks: Any) -> dict[str, Any]:
        made = tf.vectorized_map(lambda cells: call(*cells), _at_least_two(blocks), warn=False)
        rows = tf.shape(blocks[0])[0]
        return {name: value[:rows] for name, value in made.items()}

    return body


def row_by_row(call: Body, outputs: Mapping[str, Any]) -> Body:
    """``call`` for one row after another. Of ``outputs``, which are one row's, those of unknown shape become ragged."""
    static = {name for name, out in outputs.items() if out.shape.is_fully_defined()}
    signature = {
        name: tf.TensorSpec(out.shape, out.dtype)
        if name in static
        else tf.RaggedTensorSpec(out.shape, out.dtype, out.shape.rank - 1)
        for name, out in outputs.items()
    }

    def one(cells: Sequence[Any]) -> dict[str, Any]:
        made = call(*cells)
        return {name: value if name in static else _ragged(value) for name, value in made.items()}

    return lambda *blocks: tf.map_fn(one, blocks, fn_output_signature=signature)


def _ragged(value: Any) -> Any:
    rank = value.shape.rank - 1
    return tf.RaggedTensor.from_tensor(value, ragged_rank=rank) if rank else value


def _at_least_two(blocks: Sequence[Any]) -> Sequence[Any]:
    """The blocks, one of a single index twice: the parallel for lets tf.squeeze, and so tf.norm, drop its dimension."""

    def twice() -> list[Any]:
        return [tf.concat([block, block], 0) for block in blocks]

    known = blocks[0].shape[0]
    if known is None:
        return tf.cond(tf.shape(blocks[0])[0] == 1, twice, lambda: list(blocks))
    return twice() if known == 1 else blocks


def _over_pairs(program: Program, call: Body) -> Body:
    """Reduce neighbours in pairs until one row is left: the order of rows stays, and log2(rows) steps do."""
    names = [spec.name for spec in program.inputs]
    pairs = vectorised(call)

    def halve(values: Sequence[Any]) -> list[Any]:
        rows = tf.shape(values[0])[0]
        even = rows - rows % 2
        inputs = [side for value in values for side in (value[0:even:2], value[1:even:2])]
        made = pairs(*inputs)
        return [tf.concat([made[name], value[even:]], 0) for name, value in zip(names, values, strict=True)]

    def body(*blocks: Any) -> dict[str, Any]:
        invariants = [tf.TensorShape([None, *spec.shape]) for spec in program.inputs]
        rows = blocks[0].shape[0]
        values = list(blocks)
        if rows is None:
            values = tf.while_loop(
                lambda *state: tf.shape(state[0])[0] > 1, lambda *state: halve(state), values, invariants
            )
        else:
            for _ in range(max(0, int(rows - 1).bit_length())):
                values = halve(values)
        return {name: value[0] for name, value in zip(names, values, strict=True)}

    return body


def _outputs(result: Any) -> dict[str, Any]:
    """What a function returned, as tensors by name. Accepts a mapping or pairs of name and tensor."""
    pairs = list(result.items()) if isinstance(result, Mapping) else result
    if not _are_pairs(pairs):
        raise UsageError(
            f"the function returned {type(result).__name__}: return its outputs by name, for example {{'z': x + 3}}"
        )
    outputs: dict[str, Any] = {}
    for name, value in pairs:
        if name.casefold() in (known.casefold() for known in outputs):
            raise UsageError(f"the function returns the output {name!r} twice: Spark's columns need different names")
        outputs[name] = _dense(name, value)
    return outputs


def _constant(value: Any, inputs: Sequence[ColumnSpec]) -> Any:
    """A constant as the function gets it. Python's numbers have no width of their own: it is that of the columns."""
    if isinstance(value, int):  # TensorFlow gives it the dtype of the tensor that it meets
        return value
    if isinstance(value, float):
        return np.dtype(_width("f", inputs)).type(value)
    kind = np.asarray(value).dtype.kind if isinstance(value, (list, tuple)) else ""
    return tf.constant(value, _width(kind, inputs)) if kind and kind in "if" else tf.constant(value)


def _width(kind: str, inputs: Sequence[ColumnSpec]) -> str:
    """The one dtype of this kind, floating-point or integer, that the columns have; else the widest."""
    met = {spec.dtype for spec in inputs if spec.dtype != BYTES and np.dtype(spec.dtype).kind == kind}
    return met.pop() if len(met) == 1 else {"f": "float64", "i": "int64"}[kind]


def _are_pairs(pairs: Any) -> bool:
    return (
        isinstance(pairs, (list, tuple))
        and len(pairs) > 0
        and all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs)
    )


def _dense(name: str, value: Any) -> Any:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise UsageError(f"output {name!r} is a {type(value).__name__}: make it dense with .to_tensor()")
    return tf.convert_to_tensor(value)


def _tf_dtype(dtype: str) -> Any:
    return tf.string if dtype == BYTES else tf.as_dtype(dtype)
