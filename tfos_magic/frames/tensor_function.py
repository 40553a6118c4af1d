"""A tensor function on its way to the workers: the function, its constants, and the columns it reads."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tfos_magic.columns.schema_plan import suggestion
from tfos_magic.errors import DataError, UsageError
from tfos_magic.frames.pickling import pack, unpack
from tfos_magic.frames.specs import ColumnSpec
from tfos_magic.spark.shipping import is_connect, read_shipped, ship_file

BLOCKS, ROWS = "map_blocks", "map_rows"
REDUCE_BLOCKS, REDUCE_ROWS, AGGREGATE = "reduce_blocks", "reduce_rows", "aggregate"

TensorFunction = Callable[..., Any]
# From here on Spark itself would broadcast, and not send it with every task.
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Program:
    """What a worker needs to trace a function. Equal programs are traced once in each Python worker.

    ``payload`` is the pickle of the function and its constants, ``inputs`` the columns in the order of ``params``. For
    reductions ``inputs`` are the columns reduced, each named as the output it becomes. ``xla`` of None leaves the
    choice to the graph. ``shipped`` names a file that the executors have in place of the payload, ``files`` those that
    the function reads: once these are replaced, it is traced anew.
    """

    mode: str
    payload: bytes
    params: tuple[str, ...]
    inputs: tuple[ColumnSpec, ...]
    xla: bool | None = None
    shipped: str = ""
    files: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Names this program in caches."""
        rest = repr((self.mode, self.params, self.inputs, self.xla, self.shipped))
        return hashlib.sha256(self.payload + rest.encode()).hexdigest()

    def load(self) -> tuple[TensorFunction, dict[str, Any]]:
        """The function and its constants."""
        return unpack(read_shipped(self.shipped) if self.shipped else self.payload)

    def light(self, spark: Any) -> Program:
        """This program for the tasks of a Spark session; a large payload has gone ahead of them.

        Classic sessions broadcast what is large by themselves.
        """
        if len(self.payload) < _LARGE_BYTES or not is_connect(spark):
            return self
        return replace(self, payload=b"", shipped=ship_file(spark, "function", self.payload))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "key"}


@dataclass(frozen=True)
class Reading:
    """A program and the names of the columns that it reads, in the order of its inputs."""

    program: Program
    columns: tuple[str, ...]


def map_program(
    mode: str,
    function: TensorFunction,
    specs: Mapping[str, Callable[[], ColumnSpec]],
    feed_dict: Mapping[str, str] | None,
    constants: Mapping[str, Any] | None,
    xla: bool | None,
) -> Reading:
    """Bind a function's parameters to columns. ``specs`` gives each column's spec on demand.

    Raises :class:`UsageError` for a signature that cannot be bound, :class:`DataError` for a column that is missing.
    """
    parameters = _column_parameters(function, constants)
    feed = _checked_feed(feed_dict, parameters)
    columns = {name: feed.get(name, name) for name, needed in parameters.items()}
    columns = {name: column for name, column in columns.items() if parameters[name] or column in specs}
    if not columns:
        raise UsageError("the function reads no column: its parameters name the columns that it gets as tensors")
    inputs = tuple(_spec(column, specs) for column in columns.values())
    files = getattr(function, "files_read", ())
    program = Program(mode, pack(function, constants), tuple(columns), inputs, xla, files=files)
    return Reading(program, tuple(columns.values()))


def reduce_program(
    mode: str,
    function: TensorFunction,
    specs: Mapping[str, Callable[[], ColumnSpec]],
    feed_dict: Mapping[str, str] | None,
    constants: Mapping[str, Any] | None,
    xla: bool | None,
) -> Reading:
    """Bind a reducer: ``x`` is made from ``x_input``, or from ``x_1`` and ``x_2`` by rows.

    Raises :class:`UsageError` for missing or extra parameters, :class:`DataError` for a column that is missing.
    """
    suffixes = ("_1", "_2") if mode == REDUCE_ROWS else ("_input",)
    parameters = _column_parameters(function, constants)
    feed = _checked_feed(feed_dict, {**parameters, **{_base(name, suffixes): True for name in parameters}})
    bases = list(dict.fromkeys(_base(name, suffixes) for name, needed in parameters.items() if needed))
    if not bases:
        raise UsageError(f"the reducer reads no column: give it parameters such as {_example(suffixes)}")
    required_parameters = [base + suffix for base in bases for suffix in suffixes]
    missing = [name for name in required_parameters if name not in parameters]
    if missing:
        raise UsageError(f"the reducer lacks the parameter {missing[0]!r}: it takes {', '.join(required_parameters)}")
    columns = {base: _fed(base, suffixes, feed) for base in bases}
    inputs = tuple(replace(_spec(column, specs), name=base) for base, column in columns.items())
    ragged = [spec for spec in inputs if spec.dtype == "bytes"]
    if ragged:
        raise DataError(f"column {columns[ragged[0].name]!r} holds {ragged[0].element_name}: only numbers are reduced")
    program = Program(mode, pack(function, constants), tuple(required_parameters), inputs, xla)
    return Reading(program, tuple(columns.values()))


def _column_parameters(function: TensorFunction, constants: Mapping[str, Any] | None) -> dict[str, bool]:
    """Parameters that are no constants, by name; True for those without a default."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise UsageError(f"{function!r} is not a function whose parameters can be read: wrap it in a lambda") from None
    unknown = [name for name in constants or {} if name not in parameters]
    if unknown:
        raise UsageError(f"constants has {unknown[0]!r}, which the function does not take: {_takes(list(parameters))}")
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"the function's parameter {parameter} does not name a column: name each one")
    return {name: p.default is p.empty for name, p in parameters.items() if name not in (constants or {})}


def _checked_feed(feed_dict: Mapping[str, str] | None, parameters: Mapping[str, bool]) -> dict[str, str]:
    unknown = [name for name in feed_dict or {} if name not in parameters]
    if unknown:
        raise UsageError(f"feed_dict has {unknown[0]!r}, which the function does not take: {_takes(list(parameters))}")
    return dict(feed_dict or {})


def _spec(column: str, specs: Mapping[str, Callable[[], ColumnSpec]]) -> ColumnSpec:
    if column not in specs:
        raise DataError(f"the DataFrame has no column {column!r}. {suggestion(column, list(specs))}")
    return specs[column]()


def _base(name: str, suffixes: Sequence[str]) -> str:
    for suffix in suffixes:
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    raise UsageError(f"the reducer has an extra parameter {name!r}: it takes parameters such as {_example(suffixes)}")


def _fed(base: str, suffixes: Sequence[str], feed: Mapping[str, str]) -> str:
    """The column that ``base`` is made of: named for itself or for its parameters, which must agree."""
    named = {feed[name] for name in (base, *(base + suffix for suffix in suffixes)) if name in feed}
    if len(named) > 1:
        raise UsageError(f"feed_dict gives {base!r} two columns, {' and '.join(sorted(named))}: give it one")
    return named.pop() if named else base


def _example(suffixes: Sequence[str]) -> str:
    return " and ".join("x" + suffix for suffix in suffixes) + ", and returns {'x': …}"


def _takes(parameters: Sequence[str]) -> str:
    return f"it takes {', '.join(parameters) or 'nothing'}"
