"""What the notebook has set in its own modules since it imported them, for workers, which import them anew.

Only what was set goes along, not what differs: a text that was edited since, a rank or a path have their own values on
workers. Without a :func:`watch` over imports the text says what a module began with.
"""

from __future__ import annotations

import ast
import base64
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from tfos_magic.disk.imports import ImportListener
from tfos_magic.disk.modules import is_local

MOST_BYTES = 64 << 10
_SCALARS = (bool, int, float, str, bytes, type(None))
_CONSTANT = (
    *(ast.Constant, ast.UnaryOp, ast.BinOp, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.unaryop, ast.operator, ast.expr_context),
)

_begun: dict[str, dict[str, str]] = {}
"""What simple values were when a module had been imported, as text, by the names of the module and the value."""


def watch() -> ImportListener:
    """Note what modules of the working directory begin with, until the listener ends."""
    for module in _loaded():
        _begun.setdefault(module.__name__, _written(module))
    listener = ImportListener(os.getcwd, lambda module: _begun.update({module.__name__: _texts(module)}))
    listener.listen()
    return listener


def changed_states() -> dict[str, str]:
    """For each module of the working directory, by name, what ``set_states`` of the workers sets: new simple values.

    For the thread that asks for a run: Python 3.11 fails where two threads make syntax trees of texts at once.
    These are numbers, texts, bytes and None, and lists, tuples, sets and dicts of such; ``MOST_BYTES`` of a module.
    """
    packed_states = {}
    for module in _loaded():
        if module.__name__ not in _begun:
            _begun[module.__name__] = _written(module)
        begun = _begun[module.__name__]
        changed = {name: vars(module)[name] for name, text in _texts(module).items() if begun.get(name) != text}
        packed = pickle.dumps(changed)
        if changed and len(packed) <= MOST_BYTES:
            packed_states[module.__name__] = base64.b64encode(packed).decode()
    return packed_states


def _loaded() -> list[ModuleType]:
    folder = os.getcwd()
    local = [module for name, module in list(sys.modules.items()) if name != "__main__" and is_local(module, folder)]
    return [module for module in local if isinstance(module, ModuleType)]


def _texts(module: ModuleType) -> dict[str, str]:
    texts = {}
    for name, value in list(vars(module).items()):
        with suppress(RecursionError, ValueError):  # of values within themselves, and of endless numbers
            if not name.startswith("__") and _is_simple(value):
                texts[name] = repr(value)
    return texts


def _is_simple(value: Any) -> bool:
    if type(value) in _SCALARS:
        return True
    if type(value) not in (list, tuple, set, dict) or len(value) > MOST_BYTES:
        return False
    parts = [*value, *value.values()] if type(value) is dict else value
    return all(map(_is_simple, parts))


def _written(module: ModuleType) -> dict[str, str]:
    """What a module that was imported unseen began with: its constants as its text has them, the rest as it is."""
    texts = _texts(module)
    with suppress(OSError, SyntaxError, ValueError), open(module.__file__ or "", encoding="utf-8") as file:
        texts.update(_constants(file.read()))
    return texts


def _constants(text: str) -> Iterator[tuple[str, str]]:
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if value is not None and all(isinstance(part, _CONSTANT) for part in ast.walk(value)):
            written = repr(eval(compile(ast.Expression(value), "<constant>", "eval"), {"__builtins__": {}}))
            yield from ((target.id, written) for target in targets if isinstance(target, ast.Name))
