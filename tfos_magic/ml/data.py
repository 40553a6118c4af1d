"""What estimators look at in a DataFrame before anything trains."""

from __future__ import annotations

import difflib
from typing import Any

from tfos_magic.errors import DataError

MOST_CLASSES = 10_000


def check_columns(df: Any, names: list[str]) -> None:
    """Raise :class:`DataError` for a column that is not there."""
    if missing := [name for name in names if name not in df.columns]:
        near = difflib.get_close_matches(missing[0], df.columns, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(df.columns)}."
        raise DataError(f"The DataFrame has no column {missing[0]!r}. {hint}")


class Rows:
    """A DataFrame as estimators read it. What was looked at once is known: DataFrames too, which are fed but once."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self._labels: dict[str, tuple[int, ...]] = {}
        self._splits: dict[str, dict[str, Any]] = {}

    def check(self, features: list[str], label: str) -> None:
        """Raise :class:`DataError` for columns that are not there, and for labels that are texts."""
        check_columns(self.frame, [*features, label])
        if self.frame.schema[label].dataType.typeName() == "string":
            raise DataError(f"Column {label!r} has texts, and labels are numbers: put a StringIndexer before.")

    def labels(self, name: str) -> tuple[int, ...]:
        """The classes in a column, in their order. Raises :class:`DataError` for what is no class."""
        if name not in self._labels:
            self._labels[name] = _classes(self.frame, name)
        return self._labels[name]

    def split(self, indicator: str) -> dict[str, Any]:
        """The DataFrames ``train`` and ``validation``, as a column of booleans says, where one is named."""
        if indicator not in self._splits:
            self._splits[indicator] = _split(self.frame, indicator)
        return self._splits[indicator]


def _classes(df: Any, name: str) -> tuple[int, ...]:
    from pyspark.sql import functions as F

    rows = df.select(F.col(f"`{name}`").cast("double")).distinct().limit(MOST_CLASSES + 1).collect()
    values = [row[0] for row in rows]
    if not values:
        raise DataError("The DataFrame has no rows.")
    if None in values:
        raise DataError(f"Column {name!r} has nulls: drop these rows, df.dropna(subset=[{name!r}]).")
    if odd := [value for value in values if not value.is_integer()]:
        raise DataError(f"Column {name!r} has {odd[0]!r}, and classes are whole numbers: is this a regression?")
    if len(values) > MOST_CLASSES:
        raise DataError(f"Column {name!r} has more than {MOST_CLASSES:,} classes: is this a regression?")
    return tuple(sorted(map(int, values)))


def _split(df: Any, indicator: str) -> dict[str, Any]:
    from pyspark.sql import functions as F

    if not indicator:
        return {"train": df}
    if indicator not in df.columns or df.schema[indicator].dataType.typeName() != "boolean":
        raise DataError(
            f"validationIndicatorCol {indicator!r} is no column of booleans, true for rows to validate with."
        )
    column = F.col(f"`{indicator}`")
    return {"train": df.where(~column), "validation": df.where(column)}
