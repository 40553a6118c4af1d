"""Which names a cell reads from outside and which it defines, read off its compiled code, as Python scopes them."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType

from tfos_magic.errors import UsageError
from tfos_magic.tracebacks import mark_lines

# IPython adds two names to the built-in ones: get_ipython means this notebook, and workers have a display of their own.
_ALWAYS_THERE = (frozenset(dir(builtins)) - {"display", "get_ipython"}) | {
    "__name__",
    "__doc__",
    "__file__",
    "__builtins__",
    "__annotations__",
}

_BUILTINS = _ALWAYS_THERE & {name for name in dir(builtins) if not name.startswith("_")}
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_DEFINING = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr"})
# Fields of statements and expressions that may not be come to. What functions read is told of by itself.
_EITHER = ("body", "orelse")
_BRANCHES: dict[type[ast.AST], tuple[str, ...]] = {
    **dict.fromkeys((ast.If, ast.IfExp), _EITHER),
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda), ("body",)),
    ast.Try: ("body", "handlers", "orelse"),
    ast.Match: ("cases",),
}
_PASSES = {**_BRANCHES, **dict.fromkeys((ast.For, ast.While), _EITHER)}
# What a worker puts into every cell, unless the notebook has a name of its own for it.
GIVEN = frozenset({"display", "tfos"})


@dataclass(frozen=True)
class CellNames:
    """``reads`` are taken from the notebook, in the order of their first use; ``defines`` are the cell's own.

    ``later`` are those that only functions and branches read, which it need not come to; ``perhaps`` those that the
    cell defines too, and reads before only where it may not come to, such as the first pass of a loop, or that its
    functions set.
    ``open_ended`` is true after ``from … import *``, which may define anything; ``dynamic`` where it calls ``exec`` or
    the like, which may too. ``builtins`` are those that it reads, of which the notebook may have others.
    """

    reads: tuple[str, ...]
    defines: frozenset[str]
    open_ended: bool
    later: frozenset[str] = frozenset()
    perhaps: frozenset[str] = frozenset()
    dynamic: bool = False
    builtins: frozenset[str] = frozenset()


def analyse(source: str, filename: str) -> CellNames:
    """Find a cell's names. Raises :class:`UsageError` with the line marked when it is not valid Python."""
    code = compile_cell(source, filename)
    loads, stores = _module_level(code)
    nested_loads, nested_stores = _nested(_inner_codes(code))
    at_once, _ = _nested(_codes_at_once(code))
    defines = frozenset(stores | nested_stores)
    taken = [*loads, *(name for name in nested_loads if name not in stores)]
    reads = [name for name in taken if name not in _ALWAYS_THERE]
    tree = ast.parse(source)
    branched = frozenset(loads).difference(_names_of(_sure(tree, _BRANCHES)))
    later = frozenset(nested_loads).difference(loads, at_once) | branched
    return CellNames(
        tuple(dict.fromkeys(reads)),
        defines,
        open_ended="import *" in source and _imports_star(tree),
        later=later,
        perhaps=frozenset(nested_stores) | defines.difference(_names_of(_sure(tree, _PASSES))),
        dynamic=not _DEFINING.isdisjoint([*loads, *nested_loads]),
        builtins=frozenset(taken) & _BUILTINS,
    )


def compile_cell(source: str, filename: str) -> CodeType:
    """Compile a cell's text, telling a syntax error in the cell's own lines."""
    try:
        return compile(source, filename, "exec")
    except SyntaxError as error:
        line = error.lineno or 0
        remedy = (
            " A cell on workers is a script: let asyncio.run() run what is awaited." if "'await'" in error.msg else ""
        )
        shown = mark_lines(source, [line])
        raise UsageError(
            f"The cell is not valid Python: {error.msg} (line {line}).{remedy} Nothing was started.\n{shown}"
        ) from None
    except ValueError as error:
        raise UsageError(f"The cell is not valid Python: {error}. Nothing was started.") from None


def _module_level(code: CodeType) -> tuple[list[str], set[str]]:
    """Names that the cell's top level loads before it stores them, and all that it stores."""
    loads: list[str] = []
    stores: set[str] = set()
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL") and name not in stores:
            loads.append(name)
        elif instruction.opname in ("STORE_NAME", "STORE_GLOBAL"):
            stores.add(name)
    return loads, stores


def _nested(codes: Iterable[CodeType]) -> tuple[list[str], set[str]]:
    """Global names that functions and classes load, and those they store with ``global``."""
    loads: list[str] = []
    stores: set[str] = set()
    for inner in codes:
        local = {str(i.argval) for i in dis.get_instructions(inner) if i.opname == "STORE_NAME"}
        for instruction in dis.get_instructions(inner):
            name = str(instruction.argval)
            if instruction.opname == "LOAD_GLOBAL" or (instruction.opname == "LOAD_NAME" and name not in local):
                loads.append(name)
            elif instruction.opname == "STORE_GLOBAL":
                stores.add(name)
    return loads, stores


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner_codes(constant)


def _codes_at_once(code: CodeType) -> Iterator[CodeType]:
    """Those of classes and comprehensions, which run where they stand."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and (constant.co_name in _COMPREHENSIONS or not _is_function(constant)):
            yield constant
            yield from _codes_at_once(constant)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def _sure(node: ast.AST, fields: Mapping[type[ast.AST], Sequence[str]]) -> Iterator[ast.AST]:
    """What is run in any case where ``node`` is: nothing that is in such ``fields``."""
    yield node
    left_out = fields.get(type(node), ())
    for field, value in ast.iter_fields(node):
        parts = value if isinstance(value, list) else [value]
        for part in parts[:1] if isinstance(node, ast.BoolOp) else parts:
            if isinstance(part, ast.AST) and field not in left_out:
                yield from _sure(part, fields)


def _names_of(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _imports_star(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names) for node in ast.walk(tree)
    )
