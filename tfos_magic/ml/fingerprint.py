"""What tells a training from others, so that it finds its own checkpoints again, and those of no other."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tfos_magic.ml.training import Fit

_NAMES = ("name", "build_config", "shared_object_id")
_PLAIN = (bool, int, float, str, bytes, tuple, np.ndarray)


def fingerprint(asked: Fit, options: Mapping[str, Any], rows: str) -> str:
    """A word for a training: what is fitted, how, and on which ``rows``, but not for how long.

    Names of layers and first trainable weights do not count: a notebook whose cell is run again makes others.
    """
    made = asked.make
    told = {
        "kind": asked.kind,
        "model": _model(asked.model) if made is None else made,
        "params": asked.params,
        "labels": asked.labels,
        "callbacks": [_callback(each) for each in asked.callbacks],
        "options": {name: value for name, value in options.items() if name not in ("frames", "resume", "outputs")},
        "rows": rows,
    }
    text = json.dumps(_Described()(told), sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class _Described:
    """Values as JSON has them, each object once: what they are made of, and not where they lie or what they are called.

    Functions are their code with what they read: closures, defaults, and the globals they name.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, whose number no other gets meanwhile

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return hashlib.sha256(value).hexdigest()
        if (known := self._seen.get(id(value))) is not None:
            return f"object {known[0]}"
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, Mapping):
            return {str(key): self(each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self(each) for each in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, partial):
            return ["partial", self(value.func), self(value.args), self(value.keywords)]
        if isinstance(value, MethodType):
            return [self(value.__func__), self(value.__self__)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return [value.__qualname__, self._members(value) if _is_of_the_user(value) else value.__module__]
        if isinstance(value, np.ndarray):
            return [str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
        if hasattr(value, "get_config") and (config := _config(value)) is not None:
            # Losses and metrics leave out of their configuration what they pass on to a function.
            return [self(type(value)), self(_without_names(config)), self(getattr(value, "_fn_kwargs", None))]
        return [self(type(value)), self(getattr(value, "__dict__", None) or _plain(value))]

    def _members(self, kind: type) -> Any:
        return {name: self(each) for name, each in vars(kind).items() if isinstance(each, FunctionType)}

    def _function(self, function: FunctionType) -> Any:
        if not _is_of_the_user(function):
            return [function.__module__, function.__qualname__]
        names = sorted(_names_in(function.__code__))
        return [
            _code(function.__code__),
            self(function.__defaults__),
            self(function.__kwdefaults__),
            [self(_content(cell)) for cell in function.__closure__ or ()],
            {name: self(function.__globals__[name]) for name in names if name in function.__globals__},
        ]


def _model(model: Any) -> Any:
    """What a Keras model is made of: layers, what it was compiled with, and what training does not set.

    That is what a class of the user's own keeps, what is frozen, and states such as those of layers that were adapted.
    """
    own = [each for each in (model, *getattr(model, "layers", ())) if _is_of_the_user(type(each))]
    kept = [
        {k: v for k, v in vars(each).items() if k[0] != "_" and k != "name" and isinstance(v, _PLAIN)} for each in own
    ]
    layers = [(type(each), each.trainable, _without_names(_config(each))) for each in getattr(model, "layers", ())]
    fixed = [np.asarray(each) for each in getattr(model, "non_trainable_variables", ()) if "seed" not in each.path]
    given = getattr(model, "_compile_config", None)
    return [type(model), layers, _without_names(dict(given.config) if given is not None else None), kept, fixed]


def _callback(callback: Any) -> Any:
    state = vars(callback).items()
    return [type(callback), {k: v for k, v in state if k[0] != "_" and (isinstance(v, _PLAIN) or callable(v))}]


def _config(layer: Any) -> Any:
    try:
        return layer.get_config()
    except Exception:  # of a class of the user's own, which may have none
        return [tuple(weight.shape) for weight in getattr(layer, "weights", ())]


def _without_names(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {key: _without_names(value) for key, value in config.items() if key not in _NAMES}
    return [_without_names(each) for each in config] if isinstance(config, list | tuple) else config


def _is_of_the_user(value: Any) -> bool:
    """Whether a function or class is none of a library's, which its version tells."""
    module = sys.modules.get(value.__module__ or "")
    path = getattr(module, "__file__", None) or ""
    return "site-packages" not in path and "dist-packages" not in path and not path.startswith(sys.base_prefix)


def _names_in(code: CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _code(code: CodeType) -> Any:
    constants = [_code(each) if isinstance(each, CodeType) else _plain(each) for each in code.co_consts]
    return [code.co_name, code.co_code.hex(), code.co_names, constants]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # that nothing was put into yet
        return None


def _plain(value: Any) -> str:
    """A value that JSON has no word for: by what it says of itself, or, where that is its address, by its class."""
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text
