"""Values on their way to a cell and back, by value: with the classes and functions that a notebook or a cell defines.

Names and what they hold come in, pickles and their buffers go out, and the other way. Classes and functions are in no
file, so their text travels with them: elsewhere AutoGraph could not convert them, nor a traceback show their lines.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from tfos_magic.values.datasets import Unbuilt
from tfos_magic.values.pickler import Pickler
from tfos_magic.values.settings import await_imports
from tfos_magic.values.unpickler import Unpickler, cache_source

__all__ = ["CUSTOM_OBJECTS", "cache_source", "pack", "unpack"]

CUSTOM_OBJECTS = "__tfos_custom_objects__"
"""The name by which what a notebook has made known to Keras travels."""


def pack(values: Mapping[str, Any]) -> bytes:
    """A pickle of ``{name: value}``. Raises what the values raise when they cannot be pickled."""
    await_imports()
    file = io.BytesIO()
    Pickler(file).dump_all(dict(values))
    return file.getvalue()


def unpack(payload: bytes, main: dict[str, Any] | None = None, later: list[Unbuilt] | None = None) -> dict[str, Any]:
    """The values of one :func:`pack` or several, the text of their functions where :mod:`linecache` finds it.

    Functions of the main module see the names ``main``, where it is given. Datasets are yet to be built where there is
    a list ``later`` for them.
    """
    file, values = io.BytesIO(payload), dict[str, Any]()
    while file.tell() < len(payload):
        values.update(Unpickler(file, main=main, later=later).load_all())
    return values
