"""Classes of a notebook that have been to a cell, and objects of those with slots."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

import numpy as np

_VALUES = (bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set, frozenset, np.ndarray, np.generic)


def make(skeleton: Callable[..., type], *args: Any) -> type:
    """Make a class without its attributes, as cloudpickle does by ``skeleton``. Where a base refuses, as one does that
    keeps a register of its subclasses, in which this one is, it is not asked."""
    try:
        return skeleton(*args)
    except Exception:  # whatever its __init_subclass__() raises
        bases = [base for parent in args[2] for base in parent.__mro__ if "__init_subclass__" in vars(base)]
        asked = [(base, vars(base)["__init_subclass__"]) for base in dict.fromkeys(bases) if base is not object]
        for base, _ in asked:
            type.__setattr__(base, "__init_subclass__", classmethod(lambda cls, **options: None))
        try:
            return skeleton(*args)
        finally:
            for base, method in asked:
                type.__setattr__(base, "__init_subclass__", method)


def set_bases(kind: type, bases: tuple[type, ...]) -> None:
    """Let a class that stays as it is come of what it has come of where it was: Keras makes a subclass of ``Model`` one
    of ``Functional`` when it is first called with inputs and outputs."""
    if kind.__bases__ != bases:
        with suppress(TypeError):  # of another layout: then it was not Keras
            kind.__bases__ = bases


def set_values(kind: type, attributes: Mapping[str, Any]) -> None:
    """Give a class that stays as it is what its attributes have become where it was: values, and other functions."""
    for name, value in attributes.items():
        known = vars(kind).get(name)
        if name.startswith(("__", "_abc_")) or not isinstance(known, (type(None), FunctionType, *_VALUES)):
            continue
        if isinstance(value, FunctionType):
            if getattr(known, "__code__", None) != value.__code__ or _shares_variables(value):
                setattr(kind, name, value)
        elif isinstance(value, _VALUES) and (isinstance(known, FunctionType) or not _alike(value, known)):
            setattr(kind, name, value)


def _shares_variables(function: FunctionType) -> bool:
    """Whether it has variables of a closure, of which others that came along may have the same."""
    return bool(set(function.__code__.co_freevars) - {"__class__"})


def _alike(value: Any, known: Any) -> bool:
    try:
        return pickle.dumps(value) == pickle.dumps(known)
    except Exception:  # what a list holds may refuse to be pickled
        return False


def has_slots(kind: type) -> bool:
    """Whether objects of a class say in ``__slots__`` what they hold, and not themselves how they are pickled."""
    asks = getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None)
    return not asks and any("__slots__" in vars(each) for each in kind.__mro__[:-1])


def reduce_slotted(obj: Any) -> Any:
    """How an object with slots is made anew: elsewhere its class may be one without, which keeps them in a dict."""
    make, made_of, state, *items = obj.__reduce_ex__(5)
    if isinstance(state, tuple) and len(state) == 2:
        state = None, {**(state[0] or {}), **state[1]}
    return make, made_of, state, *items
