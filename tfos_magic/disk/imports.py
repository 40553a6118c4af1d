"""Hearing of modules of a folder as they are imported."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from tfos_magic.disk.modules import lies_in


class ImportListener(MetaPathFinder):
    """Calls ``heard`` with each module that was read from a text below ``folder()``, before who imports it has it."""

    def __init__(self, folder: Callable[[], str], heard: Callable[[ModuleType], None]) -> None:
        self._folder, self._heard = folder, heard

    def listen(self) -> None:
        """Begin to hear, until :meth:`end`."""
        at = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
        sys.meta_path.insert(at, self)

    def end(self) -> None:
        """Hear no more. Ending twice is harmless."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification that the next finder would give, of which is heard; None for all other modules."""
        folder = self._folder()
        if path is not None and not any(lies_in(str(place), folder) for place in path):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or not lies_in(spec.origin or "", folder):
            return None
        read = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            read(module)
            self._heard(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextmanager
def set_states(folder: str, states: Mapping[str, str]) -> Iterator[None]:
    """Let modules below ``folder`` that the block imports have what ``states`` say: pickled dicts in base64."""

    def give(module: ModuleType) -> None:
        if state := states.get(module.__name__):
            vars(module).update(pickle.loads(base64.b64decode(state)))

    listener = ImportListener(lambda: folder, give)
    listener.listen()
    try:
        yield
    finally:
        listener.end()
