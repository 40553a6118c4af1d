"""A traced function: once for rows of any number and, where it pays, once by XLA for full blocks."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from tfos_magic.columns.columns import BYTES
from tfos_magic.errors import TFOSError, UsageError
from tfos_magic.frames.arrow_blocks import RaggedRows
from tfos_magic.frames.checks.row_independence import RowsCheck
from tfos_magic.frames.graph import streams
from tfos_magic.frames.graph.bodies import body_of, body_signature, cell_signature, load, row_by_row
from tfos_magic.frames.specs import ColumnSpec, shapes_fit
from tfos_magic.frames.tensor_function import AGGREGATE, BLOCKS, REDUCE_BLOCKS, ROWS, Program
from tfos_magic.tracebacks import essence

# The widest tensor of a block should stay in a core's share of the cache.
_CACHE_BYTES = 2 << 20
_FEWEST_ROWS, _MOST_ROWS = 64, 8192
_MOST_SHAPES = 4
# XLA drops assertions, clamps indices that are out of bounds, and cannot call Python: results would not be the same.
_NOT_THE_SAME = {"LeftShift", "RightShift", "Assert", "GatherV2", "GatherNd", "ResourceGather", "PyFunc", "EagerPyFunc"}
# On a CPU these have kernels of their own that beat the code which XLA makes.
_BETTER_ALONE = {"Conv2D", "DepthwiseConv2dNative", "Conv3D", "MatMul", "BatchMatMulV2", "Einsum"}
_NO_WORK = {
    "Placeholder",
    "Const",
    "Identity",
    "IdentityN",
    "NoOp",
    "ReadVariableOp",
    "Cast",
    "Reshape",
    "StridedSlice",
    "Shape",
    "Equal",
    "If",
    "StatelessIf",
    "ConcatV2",
}
_FEWEST_FUSED = 3
_OF_ARGUMENTS, _MOST_LINES = "Arguments received by", 3


class Compiled:
    """A program, traced. ``outputs`` are the specs of what it gives, ``block_rows`` the rows that suit the cache.

    Raises :class:`UsageError` where the function cannot be traced with its columns or returns what cannot be used.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        function = load(program)
        self._check = function.check
        self._body = body_of(program, function.call)
        cell = _trace(function.call, cell_signature(program), program)
        self.outputs = _output_specs(program, cell.structured_outputs)
        # For rows that cannot be computed at once.
        self._by_row = row_by_row(function.call, cell.structured_outputs) if program.mode == ROWS else None
        self._any_rows = _trace(self._body, body_signature(program), program)
        self.block_rows = _block_rows(self._any_rows.graph)
        nodes = streams.nodes_of(self._any_rows.graph)
        # By XLA operations that draw would begin anew in each process, whatever their seeds.
        self._draws = streams.draws(nodes)
        self._states = streams.states_of(self._any_rows.graph) if self._draws else {}
        pays = _xla_pays(self._any_rows.graph, nodes) if program.xla is None else program.xla
        self._by_xla = pays and not self._draws
        self._fixed: dict[tuple[Any, ...], Any] = {}
        _refuse_repeated_draws(program, self._any_rows.graph)
        # What draws or counts would go on from where the trial left it.
        tried = function.is_of_rows and not (self._draws or streams.assigns(nodes))
        self._check_rows = RowsCheck(self._of_any_rows, streams.precision(nodes)) if tried else None

    def for_stream(self, stream: int) -> Compiled:
        """This program with the random numbers of one stream: the same ones each time, others in other streams."""
        if not self._draws:
            return self
        streams.begin(self._states, stream)
        if not streams.is_seeded(streams.nodes_of(self._any_rows.graph)):
            return self
        fresh = copy.copy(self)
        fresh._any_rows = _trace(streams.streamed(self._body, stream), body_signature(self.program), self.program)
        streams.refuse_other_seeds(streams.nodes_of(fresh._any_rows.graph), stream)
        return fresh

    def __call__(self, blocks: Sequence[Any], full: bool = False) -> dict[str, Any]:
        """Run on NumPy blocks in the order of the inputs; ``full`` says that many more of this size will come."""
        self._check(blocks)
        if self._check_rows is not None:
            with suppress(tf.errors.OpError, ValueError):  # where rows cannot be computed, their block will say it
                self._check_rows(blocks)
        tensors = [tf.convert_to_tensor(block) for block in blocks]
        try:
            outputs = self._computed(tensors, full)
        except (tf.errors.OpError, ValueError) as error:
            raise UsageError(
                f"the function failed: {_short(error)} (on a block of {_describe(self.program)})"
            ) from error
        return {name: _numpy(value) for name, value in outputs.items()}

    def _computed(self, tensors: list[Any], full: bool) -> dict[str, Any]:
        """Run all rows at once or, where that cannot be, one after another, here and from now on.

        All at once TensorFlow computes rows of which whatever is made on the way has one shape: the words of texts have
        not. Should a row be at fault, it will say so by itself.
        """
        try:
            return self._run(tensors, full)
        except tf.errors.InvalidArgumentError:
            if self._by_row is None or self._draws:
                raise
        traced = _trace(self._by_row, body_signature(self.program), self.program)
        outputs = dict(traced(*tensors))
        self._any_rows, self._by_xla = traced, False
        return outputs

    def _of_any_rows(self, blocks: Sequence[Any]) -> dict[str, Any]:
        made = self._any_rows(*[tf.convert_to_tensor(block) for block in blocks])
        return {name: np.asarray(value.numpy()) for name, value in made.items()}

    def _run(self, tensors: list[Any], full: bool) -> dict[str, Any]:
        if not (full and self._by_xla and self.program.mode != AGGREGATE):
            return dict(self._any_rows(*tensors))
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if shapes in self._fixed:
            return dict(self._fixed[shapes](*tensors))
        if len(self._fixed) >= _MOST_SHAPES:
            return dict(self._any_rows(*tensors))
        return self._first_by_xla(shapes, tensors)

    def _first_by_xla(self, shapes: tuple[Any, ...], tensors: list[Any]) -> dict[str, Any]:
        signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        try:
            traced = tf.function(self._body, input_signature=signature, autograph=False, jit_compile=True)
            compiled = traced.get_concrete_function()
            outputs = dict(compiled(*tensors))
        except (tf.errors.OpError, NotImplementedError, TypeError, ValueError):
            # Not every operation has an XLA kernel. Should the data be at fault, the ordinary graph will say so.
            self._by_xla = False
            return dict(self._any_rows(*tensors))
        self._fixed[shapes] = compiled
        return outputs


def _numpy(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return RaggedRows(value.flat_values.numpy(), [splits.numpy() for splits in value.nested_row_splits])
    return np.asarray(value.numpy())


def _trace(body: Any, signature: list[Any], program: Program) -> Any:
    try:
        return tf.function(body, input_signature=signature, autograph=False).get_concrete_function()
    except TFOSError:
        raise
    except Exception as error:  # the user's function may fail in any way
        raise UsageError(
            f"the function cannot be traced: {type(error).__name__}: {_short(error)} (with {_describe(program)})"
        ) from error


def _output_specs(program: Program, outputs: dict[str, Any]) -> tuple[ColumnSpec, ...]:
    if program.mode in (BLOCKS, ROWS):
        return tuple(_mapped_spec(program, name, spec) for name, spec in outputs.items())
    _check_reducer(program, outputs)
    return program.inputs


def _mapped_spec(program: Program, name: str, spec: Any) -> ColumnSpec:
    if spec.shape.rank is None:
        raise UsageError(f"output {name!r} has an unknown number of dimensions: tf.ensure_shape says how many")
    shape = tuple(spec.shape)
    if program.mode == BLOCKS:
        if not shape:
            raise UsageError(f"output {name!r} is a scalar: an output of a block has a first dimension of rows")
        shape = shape[1:]
    if spec.dtype == tf.string:
        binary = any(each.dtype == BYTES and not each.text for each in program.inputs)
        return ColumnSpec(name, BYTES, shape, text=not binary)
    if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool) or spec.dtype == tf.uint64:
        raise UsageError(f"output {name!r} is {spec.dtype.name}, which no column of Spark holds: tf.cast it")
    return ColumnSpec(name, spec.dtype.name, shape)


def _check_reducer(program: Program, outputs: dict[str, Any]) -> None:
    inputs = {spec.name: spec for spec in program.inputs}
    suffix = "_input" if program.mode in (REDUCE_BLOCKS, AGGREGATE) else "_1"
    for name in outputs:
        if name not in inputs:
            raise UsageError(f"the reducer returns {name!r}, but takes no {name + suffix!r} to make it from")
    for name, spec in inputs.items():
        if name not in outputs:
            raise UsageError(f"the reducer takes {name + suffix!r}, but does not return {name!r}")
        _check_same(spec, outputs[name])


def _check_same(spec: ColumnSpec, made: Any) -> None:
    if made.dtype.name != spec.dtype:
        raise UsageError(
            f"the reducer makes {spec.name!r} as {made.dtype.name} from {spec.dtype}: cast one to the other, since it "
            "must be able to reduce its own results"
        )
    if made.shape.rank is not None and not shapes_fit(tuple(made.shape), spec.shape):
        shape = replace(spec, shape=tuple(made.shape)).describe(rows=False)
        raise UsageError(
            f"the reducer makes {spec.name!r} as {shape} from rows of {spec.describe(rows=False)}: reduce over the "
            "first dimension alone, for example tf.reduce_sum(x_input, axis=0)"
        )


def _block_rows(graph: Any) -> int:
    """The largest power of two of rows whose widest tensor fits the cache."""
    widest = max((_bytes_per_row(out) for op in graph.get_operations() for out in op.outputs), default=8)
    fitting = max(1, _CACHE_BYTES // max(1, widest))
    return min(_MOST_ROWS, max(_FEWEST_ROWS, 1 << (fitting.bit_length() - 1)))


def _bytes_per_row(tensor: Any) -> int:
    shape = tensor.shape
    if shape.rank is None or None not in shape.as_list() or tensor.dtype == tf.resource:
        return 0
    return int(np.prod([length for length in shape if length is not None])) * max(1, tensor.dtype.size or 16)


def _refuse_repeated_draws(program: Program, graph: Any) -> None:
    drawn = streams.repeated_draw(graph) if program.mode == BLOCKS else None
    if drawn:
        raise UsageError(
            f"{drawn!r} draws a random number for each row from a constant seed, so every block would have the same "
            "ones: draw with tf.random.normal(…, seed=…), whose stream goes on from block to block, or make the seed "
            "from a column, row by row with map_rows"
        )


def _xla_pays(graph: Any, nodes: Sequence[Any]) -> bool:
    ops = {node.op for node in nodes}
    if ops & (_NOT_THE_SAME | _BETTER_ALONE) or any(map(_cuts_fractions, nodes)):
        return False
    if any(tensor.dtype == tf.string for op in graph.get_operations() for tensor in op.outputs):
        return False
    return len([node for node in nodes if node.op not in _NO_WORK]) >= _FEWEST_FUSED


def _cuts_fractions(node: Any) -> bool:
    """Whether floats become integers: XLA makes other numbers of NaN and of what is out of range."""
    if node.op != "Cast":
        return False
    given, made = (tf.dtypes.as_dtype(node.attr[name].type) for name in ("SrcT", "DstT"))
    return bool(given.is_floating and made.is_integer)


def _describe(program: Program) -> str:
    return ", ".join(f"{spec.name}: {spec.describe(rows=program.mode != ROWS)}" for spec in program.inputs)


def _short(error: Exception) -> str:
    """What an error says, in one line: without call stacks, and without what Keras says of the arguments of a layer."""
    lines = [line.strip() for line in essence(str(error)).splitlines() if line.strip()]
    return " ".join(list(takewhile(lambda line: not line.startswith(_OF_ARGUMENTS), lines))[:_MOST_LINES])
