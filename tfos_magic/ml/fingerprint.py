"""What tells a training from others, so that it finds its own checkpoints again, and those of no other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from tfos_magic.ml.training import Fit

_NAMES = ("name", "trainable", "build_config", "shared_object_id")


def fingerprint(asked: Fit, options: Mapping[str, Any], rows: str) -> str:
    """A word for a training: what is fitted, how, and on which ``rows``, but not for how long.

    Names of layers and first weights do not count: a notebook whose cell is run again makes others.
    """
    made = asked.make
    told = {
        "kind": asked.kind,
        "model": _model(asked.model) if made is None else _function(made),
        "params": asked.params,
        "labels": asked.labels,
        "options": {name: value for name, value in options.items() if name not in ("frames", "resume", "outputs")},
        "rows": rows,
    }
    text = json.dumps(told, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _model(model: Any) -> Any:
    compiled = getattr(model, "get_compile_config", lambda: None)()
    layers = [(type(layer).__name__, _without_names(_config(layer))) for layer in getattr(model, "layers", ())]
    return [type(model).__name__, layers, _without_names(compiled)]


def _config(layer: Any) -> Any:
    try:
        return layer.get_config()
    except Exception:  # of a class of the user's own, which may have none
        return [tuple(weight.shape) for weight in layer.weights]


def _without_names(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {key: _without_names(value) for key, value in config.items() if key not in _NAMES}
    return [_without_names(each) for each in config] if isinstance(config, list | tuple) else config


def _function(function: Callable[..., Any]) -> Any:
    code = getattr(function, "__code__", None)
    return _code(code) if code is not None else type(function).__name__


def _code(code: CodeType) -> Any:
    constants = [_code(each) if isinstance(each, CodeType) else _plain(each) for each in code.co_consts]
    return [code.co_name, code.co_code.hex(), code.co_names, constants]


def _plain(value: Any) -> str:
    """A value that JSON has no word for: by what it says of itself, or, where that is its address, by its class."""
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text
