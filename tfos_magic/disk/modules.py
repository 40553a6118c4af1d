"""Modules that lie beside the notebook, fresh for every cell as what a cell defines is."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import FileFinder
from types import ModuleType
from typing import Any

from tfos_magic.disk.trust import is_trusted
from tfos_magic.tracebacks import is_installed

_LIBRARIES = frozenset({__name__.partition(".")[0], "__main__", "pyspark", "py4j", "tensorflow", "keras"})
"""Modules that are no user's even where they lie in a folder of the import path, as Spark's own distribution does."""
_OF_PYTHON = tuple({os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib")})


@contextmanager
def local_modules(folder: str, path: Sequence[str], spared: Collection[str]) -> Iterator[None]:
    """Let the block import what lies in ``folder`` before anything else, and after all else what ``path`` has more that
    is trusted here.

    Modules below ``folder`` are read anew, but for installed ones and those ``spared``. When the block ends, the import
    path is as it was.
    """
    before, bytecode = list(sys.path), sys.dont_write_bytecode
    _forget(folder, spared)
    _look_again()
    more = [entry for entry in path if entry not in before and entry != folder and is_trusted(entry)]
    sys.path[:] = [folder, *before, *more]
    sys.dont_write_bytecode = True  # its files are told apart by size and second only
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, bytecode
        _forget(folder, spared)


def _look_again() -> None:
    """Have imports list folders anew; not archives, which Python would read again as a whole."""
    for place, finder in list(sys.path_importer_cache.items()):
        if finder is None:  # it was not there then
            del sys.path_importer_cache[place]
        elif isinstance(finder, FileFinder):
            finder.invalidate_caches()


def write_sources(sources: Mapping[str, str], folder: str) -> None:
    """Write modules, texts by their paths relative to the notebook's directory, to ``folder``."""
    for name, text in sources.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def is_local(module: Any, folder: str) -> bool:
    """Whether a module, or a package without a file, lies below ``folder`` and is not installed there.

    ``module`` is what ``sys.modules`` holds, which may be anything, None too.
    """
    known = getattr(module, "__dict__", {})  # not asked for one by one, which would load a module that waits for that
    places = [known.get("__file__") or "", *map(str, known.get("__path__") or ())]
    return any(lies_in(place, folder) for place in places)


def lies_in(place: str, folder: str) -> bool:
    """Whether a path is below ``folder``, and neither in an archive nor that of something installed there."""
    return place.startswith(os.path.join(folder, "")) and not is_installed(place) and os.path.exists(place)


def is_own(name: str) -> bool:
    """Whether a module is of this package, which workers have, and which a checkout may have beside the notebook."""
    return name.partition(".")[0] == __name__.partition(".")[0]


def is_users(module: Any) -> bool:
    """Whether what ``sys.modules`` holds is a module of the user's own, beside the notebook or elsewhere."""
    known = getattr(module, "__dict__", {}) if isinstance(module, ModuleType) else {}
    file = known.get("__file__") or ""
    return file.endswith(".py") and is_users_text(known.get("__name__") or "", file)


def is_users_text(name: str, path: str) -> bool:
    """Whether a module of that name, or its package, is the user's own: neither Python's, nor installed, nor ours."""
    return name.partition(".")[0] not in _LIBRARIES and not path.startswith(_OF_PYTHON) and not is_installed(path)


def _forget(folder: str, spared: Collection[str]) -> None:
    for name, module in list(sys.modules.items()):
        if not is_own(name) and name not in spared and isinstance(module, ModuleType) and is_local(module, folder):
            del sys.modules[name]


@dataclass(frozen=True)
class _Loaded:
    """Where a module's text is, below which entry of the import path, and what tells it from others: its text's time
    and size, and the state that the notebook gave it."""

    file: str
    entry: str
    mark: tuple[tuple[int, int] | None, str | None]


class EditedModules:
    """What a trainer has loaded of the user's own modules beyond the working directory, such as in a folder of
    ``sys.path``: they stay from cell to cell, and are imported anew once their files have changed, or what the notebook
    set in them.

    Those named in ``spared`` never are.
    """

    def __init__(self, spared: Collection[str]) -> None:
        self._spared = spared
        self._loaded: dict[str, _Loaded] = {}

    @contextmanager
    def imported_anew(self, folder: str, states: Mapping[str, str]) -> Iterator[None]:
        """Let the block import what has changed, with all else below the same entry of the import path, which may hold
        what it was. What lies in ``folder`` is left to :func:`local_modules`. ``states`` are those of
        :func:`~tfos_magic.disk.imports.set_states`."""
        began = time.time_ns()
        changed = {
            each.entry for name, each in self._loaded.items() if (_stamp(each.file), states.get(name)) != each.mark
        }
        for name, each in list(self._loaded.items()):
            if each.entry in changed:
                del self._loaded[name]
                sys.modules.pop(name, None)
        try:
            yield
        finally:
            for name, module in list(sys.modules.items()):
                known = name in self._loaded or name in self._spared or is_local(module, folder)
                if not known and (loaded := _loaded(module, began, states.get(name))):
                    self._loaded[name] = loaded


def _loaded(module: Any, began: int, state: str | None) -> _Loaded | None:
    """What is known of a module of the user's own; None for any other. A text that was changed after ``began`` may not
    be the one that was read."""
    if not is_users(module):
        return None
    entry = max((path for path in sys.path if path and is_local(module, path)), key=len, default="")
    stamp = _stamp(module.__file__)
    return _Loaded(module.__file__, entry, (None if stamp and stamp[0] >= began else stamp, state)) if entry else None


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
