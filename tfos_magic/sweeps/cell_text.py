"""What a sweep reads off the text of its cell: which model is the trial's, and what the metric may be the name of."""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from types import CodeType

from tfos_magic.errors import UsageError

BEST, STUDY = "best", "study"
"""Names by which a sweep gives its results; a cell may define the first by itself."""

_WITHIN = ("STORE_GLOBAL",)
_AT_TOP = ("STORE_NAME", *_WITHIN)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def text_of(cell: str | Callable[..., object]) -> str:
    """The text of a cell, or of a function where it is known."""
    if isinstance(cell, str):
        return cell
    with suppress(OSError, TypeError):
        return textwrap.dedent(inspect.getsource(inspect.unwrap(cell)))
    return ""


def model_of(source: str) -> str:
    """The name of the model that a cell trains: ``best`` where it sets that, else what it calls ``fit`` of last.

    Empty where it does neither.
    """
    if sets(source, BEST):
        return BEST
    calls = [
        node.func for node in _nodes(source) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    fitted = [call for call in calls if call.attr == "fit" and isinstance(call.value, ast.Name)]
    last = max(fitted, key=lambda call: (call.lineno, call.col_offset), default=None)
    return last.value.id if last is not None and isinstance(last.value, ast.Name) else ""


def sets(source: str, name: str) -> bool:
    """Whether a cell gives a global name a value, as Python scopes it: by ``import`` and ``def`` too."""
    return name in _stored(compile(source, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), _AT_TOP)


def _stored(code: CodeType, operations: Collection[str]) -> set[str]:
    """The global names that a code object sets, and those within it."""
    found = {each.argval for each in dis.get_instructions(code) if each.opname in operations}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return found.union(*(_stored(each, _WITHIN) for each in inner))


def outputs_of(source: str, metric: str, asked: Sequence[str], model: str) -> list[str]:
    """What the best trial is to bring back: its ``model``, names ``asked`` for, and the metric where it is a name."""
    named = [name for name in asked if name not in (BEST, STUDY)]
    return list(dict.fromkeys([*named, *([model] if model else []), *([metric] if sets(source, metric) else [])]))


def refuse_without_model(model: str) -> None:
    """Raise :class:`UsageError` where a model is wanted and the cell names none."""
    if not model:
        raise UsageError(
            "best is what the cell sets as best, else the model that it calls fit of by a name, as model.fit(...): it "
            "does neither."
        )


def _nodes(source: str) -> Iterator[ast.AST]:
    """All nodes of the cell but those within functions and classes."""
    waiting: list[ast.AST] = list(ast.parse(source).body)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _SCOPES):
            yield node
            waiting.extend(ast.iter_child_nodes(node))
