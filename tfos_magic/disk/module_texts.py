"""The modules beside the notebook that a cell may use, as texts for workers that do not see its directory."""

from __future__ import annotations

import ast
import dis
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any

from tfos_magic.disk.modules import is_local, is_own

MOST_BYTES = 4 << 20
_TEXTS = 1024
"""Modules, of one run or several, of which it is known what they import."""


def local_sources(cell: str) -> dict[str, str]:
    """The texts of the modules below the working directory that ``cell`` imports, and of those that this process has
    loaded, with what they import in turn; by path relative to that directory. ``MOST_BYTES`` of them at most.
    """
    folder, sources, size = os.getcwd(), dict[str, str](), 0
    names = [*_imported(cell), *_loaded(folder)]
    while names:
        path = _path_of(names.pop(0), folder)
        if not path or os.path.relpath(path, folder) in sources:
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        size += len(text.encode())
        if size > MOST_BYTES:
            break
        sources[os.path.relpath(path, folder)] = text
        package = os.path.relpath(os.path.dirname(path), folder).replace(os.sep, ".").strip(".")
        names += _imported(text, package)
    return sources


def imports(module: ModuleType) -> tuple[str, ...]:
    """The names of modules that a loaded module may import, and their packages, by its text as it is now."""
    try:
        with open(module.__file__ or "", encoding="utf-8") as file:
            return _imported(file.read(), module.__package__ or "")
    except (OSError, ValueError):
        return ()


def _loaded(folder: str) -> list[str]:
    return [name for name, module in list(sys.modules.items()) if not is_own(name) and is_local(module, folder)]


@lru_cache(_TEXTS)
def _imported(text: str, package: str = "") -> tuple[str, ...]:
    """The names of modules that a text may import, and their packages; relative ones are of ``package``.

    Read off the compiled code: Python 3.11 fails where two threads make syntax trees of texts at once. It takes a
    millisecond or more for a module, so it is done once for each.
    """
    return tuple(dict.fromkeys(_names_in(text, package)))


def _names_in(text: str, package: str) -> Iterator[str]:
    with suppress(SyntaxError, ValueError):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        for name, level, names in _imports(compile(text, "<text>", "exec", flags=flags, dont_inherit=True)):
            parts = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*parts, *([name] if name else [])])
            yield from _with_parents(base)
            for alias in names:
                yield f"{base}.{alias}"


def _imports(code: CodeType) -> Iterator[tuple[str, int, Sequence[str]]]:
    """The module, the level and the names of every import in a code and in those within it."""
    before: list[Any] = [None, None]
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level, names = before
            yield instruction.argval, level, names or ()
        if instruction.opname != "EXTENDED_ARG":
            before = [before[1], instruction.argval]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports(constant)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _path_of(name: str, folder: str) -> str:
    """The text of a module below ``folder`` and not installed there; empty where it is none."""
    if is_own(name):
        return ""
    module = sys.modules.get(name)
    if module is not None:
        path = getattr(module, "__file__", None) or ""
        return path if is_local(module, folder) and path.endswith(".py") else ""
    base = os.path.join(folder, *name.split("."))
    return next((path for path in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(path)), "")
