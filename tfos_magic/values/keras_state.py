"""What Keras keeps for a process beside random numbers and settings: how often it has given each automatic name, and
custom objects.

A cell begins with what the notebook has, and the notebook goes on with the names where the cell has left them, so that
layers are called what they are called in one process. Nothing here imports Keras.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

_waiting: dict[str, int] = {}


def custom_objects() -> dict[str, Any]:
    """What the main module has made known to Keras by name, for layers and models that are read from files."""
    return {name: obj for name, obj in _registry()[0].items() if getattr(obj, "__module__", "") == "__main__"}


@contextmanager
def own_registry() -> Iterator[None]:
    """Let what is made known to Keras in the block be forgotten after it."""
    tables = _registry()
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, known in zip(tables, before, strict=True):
            table.clear()
            table.update(known)


def register(objects: Mapping[str, Any]) -> None:
    """Make known to Keras what :func:`custom_objects` gave elsewhere."""
    if objects:
        import keras

        keras.saving.get_custom_objects().update(objects)


def names() -> MutableMapping[str, int]:
    """How often each name was given, by its stem: Keras's own table, or one that waits until Keras is loaded."""
    if (state := _state()) is None:
        return _waiting
    table: MutableMapping[str, int] = state.get_global_attribute("object_name_uids", defaultdict(int), True)
    _raise(table, _waiting)
    _waiting.clear()
    return table


def go_on(table: MutableMapping[str, int], left: Mapping[str, int] | None, *, meanwhile: bool = False) -> None:
    """Go on in a table of :func:`names` from what a cell has ``left``; None where it has not begun.

    ``meanwhile`` says that names may have been given here while it ran.
    """
    if left is None:
        return
    if not meanwhile:
        table.clear()
    _raise(table, left)
    if table is _waiting:
        names()


def _raise(table: MutableMapping[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        table[name] = max(count, table.get(name, 0))


def _registry() -> tuple[dict[Any, Any], ...]:
    """Keras's tables of objects by name and names by object."""
    module = sys.modules.get("keras.src.saving.object_registration")
    return ({}, {}) if module is None else (module.GLOBAL_CUSTOM_OBJECTS, module.GLOBAL_CUSTOM_NAMES)


def _state() -> Any:
    return sys.modules.get("keras.src.backend.common.global_state")
