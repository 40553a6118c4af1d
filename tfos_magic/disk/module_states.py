"""What the notebook has set in the user's own modules since it imported them, for workers, which import them anew.

Only what was set goes along, not what differs: a text that was edited since, a rank or a path have their own values on
workers. Without a :func:`watch` over imports the text says what a module began with.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import os
import pickle
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from tfos_magic.disk.imports import ImportListener
from tfos_magic.disk.module_texts import imports
from tfos_magic.disk.modules import is_users

MOST_BYTES = 64 << 10
_SCALARS = (bool, int, float, str, bytes, type(None))
_CONSTANT = (
    *(ast.Constant, ast.UnaryOp, ast.BinOp, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.unaryop, ast.operator, ast.expr_context),
)
_SENT = sys.stdlib_module_names - {"__main__", "types"} | {"numpy"}
"""The packages whose objects are sent, beside those of the user's own modules: such as can be pickled at once."""

_Mark = str | Callable[[], Any]
"""What tells a value from others: a text; for a value that is not sent, what gives the value itself."""

_begun: dict[str, dict[str, _Mark]] = {}
"""What public values were when a module had been imported, by the names of the module and the value."""


def watch() -> ImportListener:
    """Note what modules of the user's own begin with, until the listener ends."""
    for module in _loaded():
        _begun.setdefault(module.__name__, _written(module))
    listener = ImportListener(lambda module: _begun.update({module.__name__: _marks(module)}))
    listener.listen()
    return listener


def changed_states() -> tuple[dict[str, str], list[str]]:
    """What the notebook has set, as ``set_states`` of the workers takes it by module, and notices of what stays.

    For the thread that asks for a run: Python 3.11 fails where two threads make syntax trees of texts at once.
    Values of modules and attributes of their classes go along, by public names, up to ``MOST_BYTES`` each: those that
    are built of Python's and NumPy's types, of classes of the user's modules, and functions and classes of modules.
    """
    modules = _loaded()
    changed = {module.__name__: values for module in modules if (values := _changed(module))}
    states, left, sent = dict[str, str](), list[str](), set[int]()
    for module, follows in _in_order(modules, changed) if changed else ():
        values = (_simple(module) if follows else {}) | changed.get(module.__name__, {})
        own = {name: value for name, value in values.items() if id(value) not in sent}  # else it is imported from there
        packed = {name: data for name, value in own.items() if (data := _packed(value)) is not None}
        sent |= {id(value) for value in own.values() if type(value) not in _SCALARS}
        if packed:
            states[module.__name__] = base64.b64encode(pickle.dumps(packed)).decode()
        left += [f"{module.__name__}.{name}" for name in own if name not in packed and not _is_sparks(own[name])]
    return states, [_notice(left)] if left else []


def _changed(module: ModuleType) -> dict[str, Any]:
    if module.__name__ not in _begun:
        _begun[module.__name__] = _written(module)
    begun = _begun[module.__name__]
    return {name: value for name, value in _values(module) if not _same(_mark(value), begun.get(name))}


def _is_sparks(value: Any) -> bool:
    """Whether it is a session or a DataFrame, which no worker could use."""
    return type(value).__module__.partition(".")[0] == "pyspark"


def _simple(module: ModuleType) -> dict[str, Any]:
    """What a module may have made of another's values, before or after they were set; but for paths beside it."""
    folder = os.path.dirname(module.__file__ or "")
    simple = {name: value for name, value in _values(module) if _is_simple(value)}
    return {name: value for name, value in simple.items() if folder not in repr(value)}


def _in_order(modules: list[ModuleType], changed: Collection[str]) -> list[tuple[ModuleType, bool]]:
    """The modules, each after those that it imports, with whether changed ones are among them."""
    loaded = {module.__name__ for module in modules}
    reached = {module.__name__: loaded.intersection(imports(module)) for module in modules}
    while (
        wider := {name: names.union(*map(reached.__getitem__, names)) for name, names in reached.items()}
    ) != reached:
        reached = wider
    ordered = sorted(modules, key=lambda module: len(reached[module.__name__]))
    return [(module, not reached[module.__name__].isdisjoint(changed)) for module in ordered]


def _notice(left: list[str]) -> str:
    names = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
    return f"{names}: set after the import, and not sent to workers, which import the module again. Set it in the cell."


def _loaded() -> list[ModuleType]:
    return [module for module in list(sys.modules.values()) if is_users(module)]


def _values(owner: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """The public values of a module and of its classes, by name and by class and name (``Config.rate``)."""
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    for name, value in list(vars(owner).items()):
        if name.startswith("_") or isinstance(value, ModuleType):
            continue
        yield f"{before}{name}", value
        if isinstance(value, type) and (value.__module__, value.__qualname__) == (module, f"{before}{name}"):
            yield from _values(value, f"{before}{name}.")


def _marks(module: ModuleType) -> dict[str, _Mark]:
    return {name: _mark(value) for name, value in _values(module)}


def _mark(value: Any) -> _Mark:
    with suppress(RecursionError, ValueError):  # of values within themselves, and of endless numbers
        if _is_simple(value):
            return repr(value)
    packed = _packed(value)
    if packed is not None:
        return hashlib.blake2b(packed).hexdigest()
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _same(mark: _Mark, begun: _Mark | None) -> bool:
    if isinstance(mark, str) or isinstance(begun, str) or begun is None:
        return mark == begun
    return mark() is begun()


def _is_simple(value: Any) -> bool:
    if type(value) in _SCALARS:
        return True
    if type(value) not in (list, tuple, set, dict) or len(value) > MOST_BYTES:
        return False
    parts = [*value, *value.values()] if type(value) is dict else value
    return all(map(_is_simple, parts))


def _packed(value: Any) -> bytes | None:
    """A value as workers read it; None where it is not sent."""
    file = _Bounded()
    try:
        _Pickler(file).dump(value)
    except Exception:  # whatever the value's own class raises
        return None
    return file.getvalue()


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MOST_BYTES:
            raise pickle.PicklingError("too large")
        return super().write(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Let what is looked up by its name be of modules, and what has a state be of types that are sent."""
        named = value if hasattr(value, "__qualname__") else type(value)
        name = getattr(named, "__module__", None) or ""
        looked_up = named is value and name != "__main__" and not name.startswith(__name__.partition(".")[0])
        if not looked_up and name.partition(".")[0] not in _SENT and not is_users(sys.modules.get(name)):
            raise pickle.PicklingError(f"of {name}")
        if not looked_up and getattr(value, "nbytes", 0) > MOST_BYTES:
            raise pickle.PicklingError("too large")
        return NotImplemented


def _written(module: ModuleType) -> dict[str, _Mark]:
    """What a module that was imported unseen began with: its constants as its text has them, the rest as it is."""
    marks = _marks(module)
    with suppress(OSError, SyntaxError, ValueError), open(module.__file__ or "", encoding="utf-8") as file:
        marks.update(_constants(ast.parse(file.read())))
    return marks


def _constants(owner: ast.Module | ast.ClassDef, before: str = "") -> Iterator[tuple[str, str]]:
    """What a module or a class sets to a constant, and to nothing else."""
    stored = Counter(_stored(owner))
    for node in owner.body:
        if isinstance(node, ast.ClassDef):
            yield from _constants(node, f"{before}{node.name}.")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if value is not None and all(isinstance(part, _CONSTANT) for part in ast.walk(value)):
            written = repr(eval(compile(ast.Expression(value), "<constant>", "eval"), {"__builtins__": {}}))
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from ((f"{before}{name}", written) for name in names if stored[name] == 1)


def _stored(node: ast.AST) -> Iterator[str]:
    """The names that a module or a class sets, as often as its text does."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from (name for part in ast.walk(child) if isinstance(part, ast.Global) for name in part.names)
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        else:
            yield from _stored(child)
