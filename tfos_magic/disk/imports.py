"""Hearing of the user's own modules as they are imported."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from tfos_magic.disk.modules import is_users_text


class ImportListener(MetaPathFinder):
    """Calls ``heard`` with each module that was read from a text of the user's, before who imports it has it."""

    def __init__(self, heard: Callable[[ModuleType], None]) -> None:
        self._heard = heard

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
        if path is not None and not any(is_users_text(name, str(place)) for place in path):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or not is_users_text(name, spec.origin or ""):
            return None
        read = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            read(module)
            self._heard(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextmanager
def set_states(states: Mapping[str, str]) -> Iterator[None]:
    """Let the user's own modules that the block imports have what ``states`` say.

    A state is the pickled dict, in base64, of pickled values by their names, such as ``rate`` or ``Config.rate``.
    """

    def give(module: ModuleType) -> None:
        state = states.get(module.__name__)
        for name, packed in pickle.loads(base64.b64decode(state)).items() if state else ():
            *owners, last = name.split(".")
            with suppress(AttributeError):  # a class that the text has no more
                setattr(reduce(getattr, owners, module), last, pickle.loads(packed))

    listener = ImportListener(give)
    listener.listen()
    try:
        yield
    finally:
        listener.end()
