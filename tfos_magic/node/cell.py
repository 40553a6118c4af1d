"""Running one cell in a trainer: a fresh main module with the notebook's names, errors told in the cell's lines."""

from __future__ import annotations

import ast
import gc
import importlib
import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any

import cloudpickle

import tfos_magic
from tfos_magic.errors import RunStopped
from tfos_magic.node.dataset import feed_dataset
from tfos_magic.node.excerpt import mark_line
from tfos_magic.node.results import TrainingHistory
from tfos_magic.node.showing import display
from tfos_magic.node.streaming import stream_dataset
from tfos_magic.protocol import RunCell
from tfos_magic.values import cache_source, unpack


def build_namespace(cell: RunCell) -> dict[str, Any]:
    """The cell's global names: ``tfos``, what was sent along, modules imported by name, feeds as datasets."""
    names: dict[str, Any] = {"display": display, "tfos": tfos_magic}
    names.update(unpack(cell.payload))
    for name, module in cell.modules.items():
        names[name] = _import(name, module)
    for name, use in cell.feeds.items():
        read = stream_dataset if "lease" in use else feed_dataset
        names[name] = read(
            use["handle"],
            batch_size=use["batch_size"],
            features=use["features"],
            label=use["label"],
            shuffle=use["shuffle"],
            seed=use["seed"],
        )
    return names


def execute(cell: RunCell, namespace: dict[str, Any], *, show_last: bool) -> None:
    """Run the cell's code. With ``show_last`` the value of a last expression is shown, as a notebook does."""
    tree = ast.parse(cell.source, cell.filename)
    last = tree.body.pop() if show_last and tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, cell.filename, "exec"), namespace)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), cell.filename, "eval"), namespace)
        if value is not None:
            display(value)


def _import(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"the cell uses the notebook's module {name!r} ({module}), which this worker cannot import ({error}): "
            "install it on the executors, or send it with spark.sparkContext.addPyFile / spark.addArtifacts."
        ) from None


@contextmanager
def main_module(cell: RunCell) -> Iterator[dict[str, Any]]:
    """A fresh ``__main__`` for the cell, so that what it defines is pickled by value; the old one returns after."""
    previous = sys.modules["__main__"]
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    known = set(linecache.cache)
    cache_source(cell.filename, cell.source)
    try:
        yield module.__dict__
    finally:
        sys.modules["__main__"] = previous
        for filename in linecache.cache.keys() - known:
            linecache.cache.pop(filename, None)
        module.__dict__.clear()
        _forget_session()


def _forget_session() -> None:
    """Give back what Keras keeps between models, so that a hundred cells cost what one does."""
    if keras := sys.modules.get("keras"):
        keras.backend.clear_session(free_memory=False)
    gc.collect()


def pack_outputs(names: list[str], namespace: dict[str, Any]) -> tuple[bytes, list[str]]:
    """Pickle the names asked back, each on its own; gives the pickle and, for those that could not be, why."""
    packed: dict[str, bytes] = {}
    missing: list[str] = []
    for name in names:
        if name not in namespace:
            missing.append(f"{name}: the cell did not define it")
            continue
        try:
            packed[name] = cloudpickle.dumps(_portable(namespace[name]))
        except Exception as error:  # any object of the user's may refuse in its own way
            missing.append(f"{name}: {type(error).__name__}: {error}")
    return cloudpickle.dumps(packed), missing


def _portable(value: Any) -> Any:
    """What the notebook should get for ``value``: a training history without its model, arrays for tensors."""
    kind = type(value)
    if kind.__name__ == "History" and kind.__module__.startswith(("keras", "tf_keras")):
        return TrainingHistory(dict(value.history), list(value.epoch), dict(value.params or {}))
    if kind.__name__ == "EagerTensor":
        return value.numpy()
    return value


def describe_error(error: BaseException, cell: RunCell) -> dict[str, Any]:
    """The failure as the notebook shows it: kind, message, traceback from the cell on, and the cell's lines."""
    frames = _from_the_cell_on(error.__traceback__, cell.filename)
    line = _cell_line(error, cell.filename)
    text = "".join(traceback.format_exception(type(error), error, frames))
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "line": line,
        "cell_lines": mark_line(cell.source, line),
        "stopped": isinstance(error, RunStopped),
    }


def _from_the_cell_on(frames: TracebackType | None, filename: str) -> TracebackType | None:
    at = frames
    while at is not None and at.tb_frame.f_code.co_filename != filename:
        at = at.tb_next
    return at or frames


def _cell_line(error: BaseException, filename: str) -> int:
    """The last line of the cell on the way to the error, from 1; 0 when the error did not pass through it."""
    if isinstance(error, SyntaxError) and error.filename == filename:
        return error.lineno or 0
    numbers = [lineno for frame, lineno in traceback.walk_tb(error.__traceback__) if _file_of(frame) == filename]
    return numbers[-1] if numbers else 0


def _file_of(frame: Any) -> str:
    return str(frame.f_code.co_filename)
