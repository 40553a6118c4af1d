"""What becomes of values that are not there: nulls, and the ends of lists shorter than others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfos_magic.errors import DataError

_LENGTHS = re.compile(r"^(.*):(\d+(?:x\d+)*)$", re.DOTALL)
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Rule:
    """A value, as text, for one column, or for every column that can hold it where ``column`` is empty.

    ``lengths`` is how long lists become, by level; empty: as long as the longest.
    """

    column: str
    value: str
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Missing:
    """What the user said of missing values: rules for nulls and for short lists, and columns to get a mask."""

    fills: tuple[Rule, ...] = ()
    pads: tuple[Rule, ...] = ()
    masks: tuple[str, ...] = ()

    @classmethod
    def of(cls, fill: Any = None, pad: Any = None, null_mask: Iterable[str] = ()) -> Missing:
        """Read ``--fill``, ``--pad`` and ``--null-mask``.

        ``fill`` is a value for all columns that can hold it, a mapping from columns to values, or a list of texts such
        as ``age=0``; a name with a dot is a field of a struct. ``pad`` likewise, each value with ``:LENGTH`` behind it
        where lists are to become that long, ``:ROWSxCOLUMNS`` for lists of lists. Raises :class:`DataError` for a
        length of 0.
        """
        return cls(
            tuple(Rule(*rule) for rule in _pairs(fill)),
            tuple(_pad_rule(*rule) for rule in _pairs(pad)),
            tuple([null_mask] if isinstance(null_mask, str) else null_mask),
        )

    @property
    def columns(self) -> list[str]:
        """The columns that are named."""
        return [rule.column for rule in (*self.fills, *self.pads) if rule.column] + list(self.masks)

    def fill_of(self, path: tuple[str, ...], dtype: str, by_name: bool) -> str | None:
        """What nulls of a column become, None where they are refused; ``by_name``: only a rule that names it counts."""
        rule = _rule_for(self.fills, path, dtype, "--fill", by_name)
        return rule.value if rule else None

    def pad_of(self, path: tuple[str, ...], dtype: str, depth: int) -> tuple[str | None, tuple[int, ...]]:
        """What short lists of a column are padded with, None where they stay short, and how long they become."""
        rule = _rule_for(self.pads, path, dtype, "--pad")
        if rule is None:
            return None, ()
        if rule.lengths and len(rule.lengths) != depth:
            raise DataError(
                f"--pad {rule.value}:{'x'.join(map(str, rule.lengths))} does not suit column {'.'.join(path)!r}: its "
                f"arrays have {depth} level{'s' if depth > 1 else ''}, so give {depth}, as in {_example(path, depth)}"
            )
        return rule.value, rule.lengths


NOTHING_MISSING = Missing()


def value_of(text: str, dtype: str) -> Any:
    """Read ``text`` as a value of ``dtype``. Raises :class:`ValueError` where it is none."""
    if dtype == "bytes":
        return text.encode()
    if dtype == "bool":
        if text.lower() not in _TRUTH:
            raise ValueError(f"{text!r} is neither true nor false")
        return _TRUTH[text.lower()]
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return float(text)
    value, limits = int(text), np.iinfo(kind)
    if not limits.min <= value <= limits.max:
        raise ValueError(f"{text} is beyond {dtype}")
    return value


def _rule_for(
    rules: Iterable[Rule], path: tuple[str, ...], dtype: str, option: str, by_name: bool = False
) -> Rule | None:
    """The last rule that names the column or the struct around it, else the last one for all that it can hold."""
    names = [".".join(path[:length]) for length in range(len(path), 0, -1)]
    for name in names:
        for rule in reversed(list(rules)):
            if rule.column == name and (_fits(rule, dtype) or _must_fit(rule, name == names[0], dtype, option)):
                return rule
    wide = [rule for rule in rules if not rule.column and _fits(rule, dtype)]
    return wide[-1] if wide and not by_name else None


def _fits(rule: Rule, dtype: str) -> bool:
    """Whether the column can hold the value; a number that names no column is not meant for strings."""
    try:
        value_of(rule.value, dtype)
    except ValueError:
        return False
    return dtype != "bytes" or bool(rule.column) or not _is_number(rule.value)


def _must_fit(rule: Rule, names_column: bool, dtype: str, option: str) -> bool:
    if names_column:
        raise DataError(f"{option} {rule.column}={rule.value}: column {rule.column!r} holds {dtype}: give such a value")
    return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pairs(given: Any) -> list[tuple[str, str]]:
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [(str(column), _text(value)) for column, value in given.items()]
    texts = given if isinstance(given, (list, tuple)) else [given]
    return [_pair(_text(text)) for text in texts]


def _pair(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    return (column.strip(), value) if sign else ("", text)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pad_rule(column: str, text: str) -> Rule:
    match = _LENGTHS.match(text)
    if match is None:
        return Rule(column, text)
    lengths = tuple(int(length) for length in match[2].split("x"))
    if 0 in lengths:
        raise DataError(f"--pad {text}: a length of 0 leaves nothing of the column; give at least 1")
    return Rule(column, match[1], lengths)


def _example(path: tuple[str, ...], depth: int) -> str:
    return f"--pad {'.'.join(path)}=0:" + "x".join(["20"] * depth)
