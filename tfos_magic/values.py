"""Values on their way to a cell, and with functions made in a notebook the text that they were made from.

A notebook's cells are in no file, so elsewhere AutoGraph could not convert the functions that they define, nor a
traceback show their lines.
"""

from __future__ import annotations

import io
import json
import linecache
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle


def pack(values: Mapping[str, Any]) -> bytes:
    """A cloudpickle of ``{name: value}``, and after it, as JSON, the text of each notebook cell that the functions
    among them come from. Raises what the values raise when they cannot be pickled."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(dict(values))
    sources = {name: text for name in sorted(pickler.filenames) if (text := _text_of_cell(name))}
    return file.getvalue() + json.dumps(sources).encode()


def unpack(payload: bytes) -> dict[str, Any]:
    """The values of :func:`pack`, the text of their functions where :mod:`linecache` finds it."""
    if not payload:
        return {}
    file = io.BytesIO(payload)
    values: dict[str, Any] = cloudpickle.load(file)
    for name, text in json.loads(file.read() or b"{}").items():
        cache_source(name, text)
    return values


def cache_source(filename: str, text: str) -> None:
    """Let tracebacks and :mod:`inspect` find the text of code that was compiled as ``filename``."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


class _Pickler(cloudpickle.Pickler):
    """Notes where the functions that it pickles come from."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.filenames: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType):
            self.filenames.add(obj.__code__.co_filename)
        return super().reducer_override(obj)


def _text_of_cell(filename: str) -> str:
    """Empty for what has a file of its own."""
    return "" if Path(filename).exists() else "".join(linecache.getlines(filename))
