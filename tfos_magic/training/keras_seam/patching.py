"""Replacing attributes for a while, and putting back exactly what was there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

_ABSENT = object()


def replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set ``owner.name`` until ``stack`` closes. What ``owner`` only inherits is not copied into it afterwards."""
    own = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    if own is _ABSENT:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, own)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let ``owner.name`` be ``value`` in the block."""
    with ExitStack() as stack:
        replace(stack, owner, name, value)
        yield


def wrap(stack: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by ``around(original, *args, **kwargs)`` until ``stack`` closes.

    What was imported from ``owner`` meanwhile does as the original does from then on.
    """
    original = getattr(owner, name)
    held = [around]

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return held[0](original, *args, **kwargs) if held else original(*args, **kwargs)

    replace(stack, owner, name, wrapped)
    stack.callback(held.clear)


def replace_item(stack: ExitStack, table: dict[Any, Any], key: Any, value: Any) -> None:
    """Set ``table[key]``, which is there, until ``stack`` closes; its place in the order of keys stays."""
    stack.callback(table.__setitem__, key, table[key])
    table[key] = value
