"""Which objects of a notebook those are that come back to it from a cell.

A model that was sent and comes back is the same object in the notebook, as in one process: whoever else holds it, or
one of its layers or variables, sees what it has learnt. Each side knows objects that travelled by a token.
"""

from __future__ import annotations

import weakref
from typing import Any
from uuid import uuid4

_TOKENS: dict[int, tuple[weakref.ref[Any], str]] = {}
_OBJECTS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def token(obj: Any) -> str:
    """The token by which ``obj`` travels; it gets one when it is first asked for."""
    reference, known = _TOKENS.get(id(obj), (None, ""))
    return known if reference is not None and reference() is obj else note(obj, uuid4().hex)


def note(obj: Any, travels_by: str) -> str:
    """Know ``obj`` by a token, which is given back."""
    key = id(obj)
    _TOKENS[key] = weakref.ref(obj, lambda gone: _forget(key, gone)), travels_by
    _OBJECTS[travels_by] = obj
    return travels_by


def by_token(travels_by: str) -> Any:
    """The object that travels by a token; None where there is none."""
    return _OBJECTS.get(travels_by)


def _forget(key: int, gone: weakref.ref[Any]) -> None:
    if _TOKENS.get(key, (None, ""))[0] is gone:
        del _TOKENS[key]
