"""Tables of this process as Spark DataFrames: pandas and polars DataFrames, Arrow tables, dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfos_magic.errors import DataError, UsageError

_KINDS = (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"))

_SIGNED = {"uint8": "int16", "uint16": "int32", "uint32": "int64", "float16": "float32"}
"""Types that Spark does not have, and the next ones that hold their numbers."""


def is_table(value: Any) -> bool:
    """Whether a value is a table that :func:`to_spark` reads."""
    kind = type(value)
    if (kind.__module__.partition(".")[0], kind.__name__) in _KINDS:
        return True
    return isinstance(value, dict) and bool(value) and all(hasattr(part, "__len__") for part in value.values())


def to_spark(value: Any, session: Callable[[], Any]) -> Any:
    """A table as a DataFrame of ``session()``, sent by Arrow. An index of pandas is no column of it.

    Arrays of a dict have a row for each of their first axis; further axes make lists. Raises :class:`DataError` for
    columns that Spark cannot hold, and for arrays that have other numbers of rows.
    """
    import pyarrow as pa

    try:
        table = _as_arrow(value)
        names = [_SIGNED.get(str(field.type), "") for field in table.schema]
        fields = [
            field.with_type(pa.type_for_alias(name)) if name else field
            for field, name in zip(table.schema, names, strict=True)
        ]
        return session().createDataFrame(table.cast(pa.schema(fields)))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"it cannot be made a Spark DataFrame: {error}") from None


def all_to_spark(frames: Mapping[str, Any] | None, session: Any) -> dict[str, Any]:
    """DataFrames by name, tables among them as those of ``session``.

    Raises :class:`DataError` with the name of one that cannot be made, :class:`UsageError` for what is no dict.
    """
    if frames is not None and not isinstance(frames, Mapping):
        raise UsageError(f"frames is {type(frames).__name__}: give a dict, such as frames={{'train': train}}.")
    made = {}
    for name, value in (frames or {}).items():
        with DataError.of(repr(name)):
            made[name] = to_spark(value, lambda: session) if is_table(value) else value
    return made


def _as_arrow(value: Any) -> Any:
    import pyarrow as pa

    if isinstance(value, dict):
        columns = {name: _column(np.asarray(part)) for name, part in value.items()}
        if len({len(column) for column in columns.values()}) > 1:
            raise ValueError(f"its arrays have {', '.join(f'{len(c)} ({n})' for n, c in columns.items())} rows")
        return pa.table(columns)
    if hasattr(value, "to_arrow"):
        return value.to_arrow()
    return value if isinstance(value, pa.Table) else pa.Table.from_pandas(value, preserve_index=False)


def _column(array: Any) -> Any:
    """An array of rows as a column: of numbers, or of lists in lists as deep as it has axes."""
    import pyarrow as pa

    if array.ndim == 0:
        raise ValueError("a dict that is fed holds arrays, with a row for each of their first axis")
    array = array.astype(_SIGNED.get(array.dtype.name, array.dtype), copy=False)
    column = pa.array(array.reshape(-1))
    for width in reversed(array.shape[1:]):
        offsets = np.arange(0, len(column) + 1, width, dtype=np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column
