"""Columns that do not fill the input of a model: too many values in a row, or too few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tfos_magic.errors import UsageError

_MOST_TOLD = 4


def refuse_widths(shape: Sequence[int | None], columns: Sequence[Any], names: Sequence[str]) -> None:
    """Raise :class:`UsageError` where columns side by side do not give a row of ``shape``.

    ``columns`` are blocks or tensors whose first dimension has the rows; lengths that are not known are let through.
    """
    cells = [tuple(column.shape[1:]) for column in columns]
    if any(None in lengths for lengths in (tuple(shape), *cells)):
        return
    taken, widths = math.prod(length or 0 for length in shape), [math.prod(lengths) for lengths in cells]
    if sum(widths) == taken:
        return
    labels = [f"{name} ({width})" for name, width in zip(names, widths, strict=True)]
    given = ", ".join([*labels[:_MOST_TOLD], "…"] if len(labels) > _MOST_TOLD else labels)
    raise UsageError(
        f"the model takes {taken} values per row, and {given} give{'s' * (len(labels) == 1)} {sum(widths)}: name in "
        "features the columns that it was trained on"
    )
