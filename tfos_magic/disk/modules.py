"""Modules that lie beside the notebook, fresh for every cell as what a cell defines is."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tfos_magic.disk.trust import is_trusted

_INSTALLED = frozenset({"site-packages", "dist-packages"})


@contextmanager
def local_modules(folder: str, path: Sequence[str], spared: Collection[str]) -> Iterator[None]:
    """Let the block import what lies in ``folder`` before anything else, and after all else what ``path`` has more that
    is trusted here.

    Modules below ``folder`` are read anew, but for installed ones and those ``spared``. When the block ends, the import
    path is as it was.
    """
    before, bytecode = list(sys.path), sys.dont_write_bytecode
    _forget(folder, spared)
    importlib.invalidate_caches()
    more = [entry for entry in path if entry not in before and entry != folder and is_trusted(entry)]
    sys.path[:] = [folder, *before, *more]
    sys.dont_write_bytecode = True  # its files are told apart by size and second only
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, bytecode
        _forget(folder, spared)


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
    """Whether a path is below ``folder`` and not that of something installed there."""
    return place.startswith(os.path.join(folder, "")) and not _INSTALLED.intersection(place.split(os.sep))


def _forget(folder: str, spared: Collection[str]) -> None:
    for name, module in list(sys.modules.items()):
        ours = name.partition(".")[0] == __name__.partition(".")[0]  # which a checkout may have beside the notebook
        if not ours and name not in spared and isinstance(module, ModuleType) and is_local(module, folder):
            del sys.modules[name]
