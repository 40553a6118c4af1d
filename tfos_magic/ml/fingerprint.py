"""What tells a training from others, so that it finds its own checkpoints again, and those of no other."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tfos_magic.ml.fit_on_workers import FitJob
from tfos_magic.tracebacks import is_installed

_NAMES = ("name", "build_config", "shared_object_id")
_CONTAINERS = (dict, list, tuple, set, frozenset)
_OF_KERAS = ("_model", "model", "params", "validation_data")
"""What Keras puts into a callback for a training."""

_OF_SPARK = (
    "py4j.",
    "pyspark.core.",
    *(f"pyspark.sql.{name}" for name in ("session", "classic", "connect", "dataframe")),
)


def fingerprint(asked: FitJob, options: Mapping[str, Any], rows: str) -> str:
    """A word for a training: what is fitted, how, and on which ``rows``, but not for how long.

    Names of layers do not count: a notebook whose cell is run again makes others.
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
        plain = type(value) in _CONTAINERS or str(type(value).__module__).startswith("keras.")
        if plain and isinstance(value, Mapping):
            return [[self(key), self(each)] for key, each in value.items()]
        if plain and isinstance(value, list | tuple | set | frozenset):
            return [self(each) for each in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
        return self._object(value)

    def _object(self, value: Any) -> Any:
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, partial):
            return ["partial", self(value.func), self(value.args), self(value.keywords)]
        if isinstance(value, MethodType):
            return [self(value.__func__), self(value.__self__)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, property | staticmethod | classmethod):
            parts = (value.fget, value.fset) if isinstance(value, property) else (value.__func__,)
            return [type(value).__name__, [self(each) for each in parts]]
        if isinstance(value, type):
            if not _is_of_the_user(value):
                return [value.__qualname__, value.__module__]
            return [value.__qualname__, self._members(value), [self(base) for base in value.__bases__]]
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            return [str(value.dtype), value.shape, self(value.tolist())]
        if isinstance(value, np.ndarray):
            return [str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
        if hasattr(value, "get_config") and (config := _config(value)) is not None:
            # Losses and metrics leave out of their configuration what they pass on to a function.
            kept = _kept(value) if _is_of_the_user(type(value)) else getattr(value, "_fn_kwargs", None)
            return [self(type(value)), self(_without_names(config)), self(kept)]
        return [self(type(value)), *map(self, _parts(value))]

    def _module(self, module: ModuleType) -> Any:
        """A module of the user's own with its text, and those that it uses."""
        if not (_is_own(module) and getattr(module, "__file__", None)):
            return module.__name__
        values = [value for name, value in sorted(vars(module).items()) if not name.startswith("__")]
        of_values = (sys.modules.get(str(getattr(value, "__module__", ""))) for value in values)
        used = [each for each in (*values, *of_values) if isinstance(each, ModuleType) and each is not module]
        return [module.__name__, _text_of(module), [self(each) for each in used if _is_own(each)]]

    def _members(self, kind: type) -> Any:
        return {
            name: self(each)
            for name, each in vars(kind).items()
            if not (name.startswith("__") and name.endswith("__") and not isinstance(each, FunctionType))
        }

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
            [self(sys.modules[name]) for name in names if name in sys.modules and name not in function.__globals__],
        ]


def _model(model: Any) -> Any:
    """What a Keras model is made of: layers, what it was compiled with, and all weights, where it has them.

    Beside it is what a class of the user's own keeps by the names that its code has.
    """
    optimizer, parts = getattr(model, "optimizer", None), [model, *getattr(model, "layers", ())]
    kept = [_kept(each) for each in parts if _is_of_the_user(type(each))]
    layers = [(type(each), each.trainable, _without_names(_config(each)), _own_parts(each)) for each in parts[1:]]
    variables = [*getattr(model, "variables", ()), *getattr(optimizer, "variables", ())]
    weights = [np.asarray(each) for each in variables if "seed" not in each.path]
    given = getattr(model, "_compile_config", None)
    compiled = _without_names(dict(given.config) if given is not None else None)
    metrics = getattr(getattr(model, "_compile_metrics", None), "_user_metrics", None)
    rate = getattr(optimizer, "_learning_rate", None)
    objects = [getattr(model, "loss", None), metrics, optimizer, None if _has_variables(rate) else rate]
    return [type(model), layers, _wiring(model), compiled, objects, kept, weights]


def _wiring(model: Any) -> Any:
    """How the operations of a functional model are connected, by their places in it; those that are no layers too."""
    operations = getattr(model, "operations", ())
    own = {id(node) for nodes in getattr(model, "_nodes_by_depth", {}).values() for node in nodes}
    nodes = [(n, node) for n, each in enumerate(operations) for node in each._inbound_nodes if id(node) in own]
    places = {id(node): number for number, (_, node) in enumerate(nodes)}

    def place(value: Any) -> Any:
        if (made := getattr(value, "_keras_history", None)) is None:
            return value
        return ["tensor", places.get(id(made.operation._inbound_nodes[made.node_index])), made.tensor_index]

    calls = [[n, node.arguments.convert(place)] for n, node in nodes]
    others = [(type(each), _without_names(_config(each))) for each in operations if not hasattr(each, "trainable")]
    ends = [[place(each) for each in getattr(model, name, None) or ()] for name in ("inputs", "outputs")]
    return [calls, others, ends] if nodes else None


def _own_parts(layer: Any) -> dict[str, Any]:
    """What a layer holds that is of the user's own classes, such as an initializer or a regularizer."""
    held = {name: value for name, value in vars(layer).items() if _is_of_the_user(type(value))}
    return {name: value for name, value in held.items() if not _has_variables(value)}


def _kept(part: Any) -> dict[str, Any]:
    """The attributes of a model or layer of the user's own, but for what Keras counts as its parts."""
    functions = [each for kind in type(part).__mro__ if _is_of_the_user(kind) for each in vars(kind).values()]
    names = set().union(*(_names_in(each.__code__) for each in functions if isinstance(each, FunctionType)))
    kept = {name: value for name, value in vars(part).items() if name in names and name != "name"}
    return {name: value for name, value in kept.items() if not _has_variables(value)}


def _has_variables(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_variables, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(_has_variables, value))
    return hasattr(value, "assign") or hasattr(value, "trainable_variables") or hasattr(value, "variables")


def _parts(value: Any) -> list[Any]:
    """What an object is made of, as pickle would have it; what it says of itself, where it cannot be pickled.

    Nothing of a Spark session and what belongs to it, which are others in each process.
    """
    if str(type(value).__module__).startswith(_OF_SPARK):
        return []
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # of any class
        return [_plain(value)]
    if isinstance(reduced, str):  # the name of something global
        return [reduced]
    made, arguments, *rest = reduced
    state, listed, keyed = [*rest, None, None, None][:3]
    return [made, arguments, state, list(listed or ()), list(keyed or ())]


def _callback(callback: Any) -> Any:
    """A callback with all that it keeps, but for what Keras puts into it."""
    return [type(callback), {name: value for name, value in vars(callback).items() if name not in _OF_KERAS}]


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
    name = value.__module__ or ""
    return isinstance(name, str) and _is_own(sys.modules.get(name))


def _is_own(module: ModuleType | None) -> bool:
    """Whether a module is the notebook's, or lies beside it: none of a library's."""
    path = getattr(module, "__file__", None) or ""
    if module is not None and module.__name__ in sys.builtin_module_names:
        return False
    return not is_installed(path) and not path.startswith(sys.base_prefix)


def _text_of(module: ModuleType) -> str:
    try:
        return Path(module.__file__ or "").read_text()
    except (OSError, ValueError):  # it has no file
        return ""


def _names_in(code: CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _code(code: CodeType) -> Any:
    constants = [_code(each) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts]
    return [code.co_name, code.co_code.hex(), code.co_names, constants]


def _constant(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, frozenset) else repr(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # that nothing was put into yet
        return None


def _plain(value: Any) -> str:
    """A value that JSON has no word for: by what it says of itself, or, where that is its address, by its class."""
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text
