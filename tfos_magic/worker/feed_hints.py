"""What to do where a model does not take the tensors that the columns of a DataFrame became."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tfos_magic.columns.columns import SCALAR, Column, decode_schema, field_column
from tfos_magic.transport.messages import FeedUse

_ONE_INPUT = re.compile(
    r"expects 1 input\(s\)|structure of `inputs` doesn't match|Missing data for input"  # for a dict of columns
    r"|'dict' object|unsupported operand type\(s\) for .*'dict'|inputs=\{'"
)
_ONE_DIMENSION = re.compile(r"min_ndim=2, found ndim=1|with unknown axis|inputs\.shape=\(None,\)")


def hint_of_columns(error: str, feeds: Iterable[FeedUse]) -> str:
    """A sentence that names an option; empty where no column of the ``feeds`` explains the text of an error."""
    uses = list(feeds)
    return _of_ragged(error, uses) or _of_single_columns(error, uses)


def _of_ragged(text: str, uses: list[FeedUse]) -> str:
    if "ragged" not in text.lower():
        return ""
    ragged = [column.name for use in uses for column in _columns(use) if column.ragged_rank]
    if not ragged:
        return ""
    return (
        f"Arrays of column {ragged[0]!r} differ in length, so they arrive as ragged tensors: --pad {ragged[0]}=0 "
        "makes them one length."
    )


def _of_single_columns(text: str, uses: list[FeedUse]) -> str:
    """For numbers that come column by column, and meet layers of one input of the shape (rows, width)."""
    for use in uses:
        columns = {column.name: column for column in _columns(use)}
        features = [columns[name] for name in use.selection.features_of(columns) if name in columns]
        if use.selection.matrix or any(column.kind != SCALAR for column in features):
            continue
        if len(features) > 1 and _ONE_INPUT.search(text):
            return (
                f"Several features arrive as a dict of tensors, one per column ({_some(features)}). For a model with "
                "one input, --matrix (in Python matrix=True) joins them side by side into one tensor of shape (rows, "
                f"{len(features)})."
            )
        if len(features) == 1 and _ONE_DIMENSION.search(text):
            return (
                f"One feature arrives as a tensor of shape (rows,): {features[0].name}. --matrix (in Python "
                "matrix=True) gives it the shape (rows, 1)."
            )
    return ""


def _columns(use: FeedUse) -> list[Column]:
    return [field_column(field) for field in decode_schema(use.schema)]


def _some(columns: list[Column]) -> str:
    names = [column.name for column in columns[:3]]
    return ", ".join(names) + (", …" if len(columns) > len(names) else "")
