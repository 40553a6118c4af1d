"""Running one cell in a trainer: a fresh main module with the notebook's names, errors told in the cell's lines."""

from __future__ import annotations

import ast
import gc
import importlib
import linecache
import re
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType, TracebackType
from typing import Any

import tfos_magic
from tfos_magic.errors import DataError, RunStopped, UsageError
from tfos_magic.feed.trainer.spooled_dataset import feed_dataset
from tfos_magic.feed.trainer.streamed_dataset import stream_dataset
from tfos_magic.tracebacks import essence, lines_in_message, mark_lines
from tfos_magic.transport.messages import AS_WRITTEN, Questions, RunCell, RunFinished
from tfos_magic.values import CUSTOM_OBJECTS, cache_source, datasets, keras_state, settings, suggestions, unpack
from tfos_magic.values.datasets import Unbuilt
from tfos_magic.worker.display import display, stand_in_for_ipython
from tfos_magic.worker.feed_hints import hint_of_columns

MOST_TOLD = 100
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SIMPLE = (bool, int, float, str, type(None))


def fill(
    names: dict[str, Any], cell: RunCell, notify: Callable[[str], None], questions: Questions | None = None
) -> list[Unbuilt]:
    """Give the cell its global names: ``tfos``, what was sent along, modules imported by name, feeds as datasets.

    Functions of the notebook that were sent along have ``names`` as their globals, as they would in one process. Gives
    datasets of the notebook that :func:`execute` is to build, as if the cell had made them; ``notify`` is told of those
    that one process would have in another order. A cell that asks has its suggestions chosen by way of ``questions``.
    """
    stand_in_for_ipython()
    unbuilt: list[Unbuilt] = []
    names.update(unpack(cell.payload, names, unbuilt))
    names.setdefault("display", display)
    names.setdefault("tfos", tfos_magic)
    if any(each.begins_anew for each in unbuilt):
        notify(
            "A shuffled tf.data.Dataset from the notebook starts its first pass in every training cell. In one "
            "process, earlier passes, such as a fit in another cell or a look at its first batch, would have changed "
            "its order. Create it in the cell if weights must match those of a single process."
        )
    ask = chosen_by(questions) if questions is not None and cell.asks else None
    suggestions.choose(names.pop(suggestions.SUGGESTED, {}), ask)
    keras_state.register(names.pop(CUSTOM_OBJECTS, {}))
    for name, module in cell.modules.items():
        names[name] = _import(name, module)
    for name, use in cell.feeds.items():
        how: dict[str, Any] = {
            "batch_size": use.batch_size,
            "selection": use.selection,
            "shuffle": use.shuffle,
            "seed": use.seed,
        }
        if use.stream is not None:
            names[name] = stream_dataset(use.stream, **how)
        elif use.spool is not None:
            names[name] = feed_dataset(use.spool, **how)
    return unbuilt


class Given:
    """What a cell's names were when it began; of large values no more than a weak reference is kept."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._given = {name: _reference(value) for name, value in names.items()}

    def set_anew(self, names: Mapping[str, Any]) -> set[str]:
        """Which of ``names`` are new, or have other values than they had."""
        return {n for n, value in names.items() if n not in self._given or self._given[n]() is not value}


def _reference(value: Any) -> Callable[[], Any]:
    if type(value) in (list, dict, set):
        parts = _parts_of(value)
        return lambda: value if _parts_of(value) == parts else None
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _parts_of(value: Any) -> list[Any]:
    """What a list, dict or set holds: small values as they are, others by who they are."""
    parts = [part for pair in value.items() for part in pair] if isinstance(value, dict) else list(value)
    return [part if isinstance(part, (bool, int, float, str, bytes)) else id(part) for part in parts]


def execute(
    cell: RunCell,
    namespace: dict[str, Any],
    unbuilt: Sequence[Unbuilt] = (),
    trained: Callable[[list[str]], None] = lambda names: None,
) -> None:
    """Build datasets and run the cell's code; ``trained`` is told the names of models of the notebook that it trains.

    The value of a last expression is shown as a notebook does, unless a semicolon ends it.
    """
    datasets.build(unbuilt)
    given = {name: steps for name in namespace if (steps := _steps_of(namespace[name])) >= 0}
    try:
        _execute(cell, namespace)
    finally:
        trained(sorted(name for name, steps in given.items() if _steps_of(namespace.get(name)) > steps))


def chosen_by(questions: Questions) -> Callable[[suggestions.Suggestion], Any]:
    """What has the notebook choose a value for a suggestion."""

    def ask(suggestion: suggestions.Suggestion) -> Any:
        if others := [choice for choice in suggestion.choices if not isinstance(choice, _SIMPLE)]:
            raise UsageError(
                f"{suggestion.name!r} offers {others[0]!r} to a search, which takes numbers, strings, True, False and "
                "None: offer names, and look the objects up by name."
            )
        return questions.ask(
            "suggestion", {name: value for name, value in vars(suggestion).items() if name != "default"}
        )

    return ask


def wants_outputs(questions: Questions, cell: RunCell, names: Mapping[str, Any]) -> bool:
    """Whether the notebook wants what the cell was asked for, which it is asked where the cell asks at all."""
    if not cell.asks:
        return True
    return bool(questions.ask("outputs", _numbers({name: names.get(name) for name in cell.outputs})))


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are numbers, as floats, and of mappings their numbers; few, as a message carries."""
    told: dict[str, Any] = {}
    for name, value in values.items():
        number = _numbers(value) or None if type(value) is dict and len(value) <= MOST_TOLD else _number(value)
        if number is not None and isinstance(name, str):
            told[name] = number
    return told


def _number(value: Any) -> float | None:
    """A number, an array or a tensor of one as a float; None for all else."""
    is_one = isinstance(value, int | float) or (hasattr(value, "dtype") and getattr(value, "shape", None) == ())
    with suppress(TypeError, ValueError):
        return float(value) if is_one else None
    return None


def of_vain(trained: Sequence[str], cell: RunCell, end: RunFinished) -> str:
    """What the user should know of models that were trained and did not come back, if there are any."""
    came = {*cell.outputs, *(name for parcel in end.parcels for name in parcel["names"])}
    names = [name for name in trained if name not in came]
    if not names:
        return ""
    return (
        f"{', '.join(names)} came from the notebook and was trained here, but is not named in -o: the notebook keeps "
        "what it had. Add it to -o if the next cell is to continue from it."
    )


def _steps_of(value: Any) -> int:
    """The steps that a compiled model was trained for; -1 for all else."""
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(value, keras.Model) or getattr(value, "optimizer", None) is None:
        return -1
    return int(value.optimizer.iterations)


def _execute(cell: RunCell, namespace: dict[str, Any]) -> None:
    tree = ast.parse(cell.source, cell.filename)
    shown = tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.source.rstrip().endswith(";")
    last = tree.body.pop() if shown else None
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
    settings.set_up(cell.notebook.settings)
    try:
        with keras_state.own_registry():
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


def describe_error(error: BaseException, cell: RunCell) -> dict[str, Any]:
    """The failure as the notebook shows it: kind, message, traceback from the cell on, and the cell's lines."""
    frames = _from_the_cell_on(error.__traceback__, cell.filename)
    lines = [] if cell.strategy == AS_WRITTEN else _cell_lines(error, cell.filename)
    text = _text(error)
    kind, message = _kind_and_message(error, text)
    hint = getattr(error, "tfos_hint", "") or _hint_of_input(error) or hint_of_columns(text, cell.feeds.values())
    return {
        "kind": kind,
        "message": message + (hint and f" ({hint})"),
        "traceback": "".join(traceback.format_exception(type(error), error, frames)),
        "line": lines[-1] if lines else 0,
        "cell_lines": mark_lines(cell.source, lines),
        "stopped": isinstance(error, RunStopped),
    }


def _hint_of_input(error: BaseException) -> str:
    """What to do where ``input()`` finds nobody: its error says no more than that a line was to be read."""
    if not isinstance(error, EOFError) or "reading a line" not in str(error):
        return ""
    return "Workers have no keyboard: ask in another cell of the notebook, and read the name that it sets here."


def _kind_and_message(error: BaseException, text: str) -> tuple[str, str]:
    """What an error is and says. A :class:`DataError` of rows comes out of a pipeline as TensorFlow's own error."""
    kind, message = type(error).__name__, essence(text)
    name = DataError.__name__
    if type(error).__module__.startswith("tensorflow.") and message.startswith(f"{name}: "):
        kind, message = name, message.partition(f"\n{DataError.__module__}.{name}: ")[0]
    return kind, message.removeprefix(f"{kind}: ")


def _from_the_cell_on(frames: TracebackType | None, filename: str) -> TracebackType | None:
    at = frames
    while at is not None and at.tb_frame.f_code.co_filename != filename:
        at = at.tb_next
    return at or frames


def _cell_lines(error: BaseException, filename: str) -> list[int]:
    """The cell's last line on the way to the error, from 1; before it the one of the cell itself that led there.

    In a graph it is known from the error's message alone, which tells where the operation was written.
    """
    if isinstance(error, SyntaxError) and error.filename == filename:
        return [error.lineno or 0]
    passed = [lineno for frame, lineno in traceback.walk_tb(error.__traceback__) if _file_of(frame) == filename]
    passed += lines_in_message(_text(error), filename)
    return list(dict.fromkeys([passed[0], passed[-1]])) if passed else []


def _text(error: BaseException) -> str:
    """What an error says, without a terminal's colours; that of a :class:`KeyError` with several lines as they are."""
    told = error.args[0] if isinstance(error, KeyError) and error.args else None
    try:
        return _COLOURS.sub("", told if isinstance(told, str) and "\n" in told else str(error))
    except Exception as failure:  # an error of the user's may refuse in its own way
        return f"(its text cannot be shown: {type(failure).__name__})"


def _file_of(frame: Any) -> str:
    return str(frame.f_code.co_filename)
