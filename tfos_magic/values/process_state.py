"""What a cell finds of the notebook's process beside its names: variables of the environment, logging, warnings."""

from __future__ import annotations

import logging
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, reduce
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from tfos_magic.transport.messages import CellLeft, NotebookState
from tfos_magic.values import keras_state, random_state, settings

_OF_A_PROCESS = ("PYSPARK_", "_PYSPARK_", "SPARK_", "TFOS_", "JPY_")
_OF_A_MACHINE = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "PWD", "OLDPWD", "TMPDIR", "JAVA_HOME"}
    | {"CUDA_VISIBLE_DEVICES", "MPLBACKEND"}
)

_STYLES = {"PercentStyle": "%", "StrFormatStyle": "{", "StringTemplateStyle": "$"}


def of_notebook(names_given: dict[str, int]) -> NotebookState:
    """What a cell is to find of this process, in which Keras has given names so often."""
    return NotebookState(settings.current(), names_given, environment_set(), logging_set(), warnings_set())


def states_left() -> dict[str, Any]:
    """What a cell has left in libraries, as fields of :class:`CellLeft`."""
    names = dict(keras_state.names())
    return {"random": random_state.taken(), "names_given": names, "settings": settings.current()}


def environment_set() -> dict[str, str | None]:
    """The variables that were set since this process began, None for those that are gone; not those that say where
    things are on this machine, or what Spark and TensorFlow are to use."""
    return _changes(_begun(), os.environ)


def set_environment(variables: Mapping[str, str | None]) -> None:
    """Set variables, and delete those that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != value:
            os.environ[name] = value


@cache
def _begun() -> dict[str, str]:
    """The environment that this process was given, or that of now where the system does not tell."""
    try:
        pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    names = {name for name in now.keys() | before.keys() if now.get(name) != before.get(name)}
    return {name: now.get(name) for name in names - _OF_A_MACHINE if not name.startswith(_OF_A_PROCESS)}


def logging_set() -> list[dict[str, Any]]:
    """Level and handlers of the root logger, and of loggers that are named after no module which is loaded."""
    known = [logging.root, *(each for each in logging.root.manager.loggerDict.values() if _is_the_users(each))]
    return [
        {"name": each.name, "level": each.level, "propagate": each.propagate, "handlers": _handlers(each)}
        for each in known
        if isinstance(each, logging.Logger)
    ]


def warnings_set() -> list[list[Any]]:
    """The filters of warnings, the first first: action, message, category, module and line.

    Those that make errors are left out: what raises is then often Keras or this package, and not the cell.
    """
    filters = [_told(each) for each in warnings.filters if each[0] != "error"]
    return [each for number, each in enumerate(filters) if each not in filters[:number]]


def go_on(left: CellLeft, *, meanwhile: bool) -> None:
    """Go on with what a cell has ``left``; ``meanwhile`` says that the notebook went on by itself while it ran."""
    set_environment(left.environment)
    if not meanwhile:
        if left.settings:
            settings.set_up(left.settings)
        _set_filters(_before_equal_ends(left.warnings, warnings_set()))
        if left.directory:
            with suppress(OSError):  # it is gone again
                os.chdir(left.directory)
    _follow_files()


def _follow_files() -> None:
    """Let handlers of this process write behind what a cell has added to their files, however these were opened."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.FileHandler and handler.stream is not None:
                with suppress(OSError, ValueError):
                    handler.stream.seek(0, os.SEEK_END)


@contextmanager
def as_in_notebook(notebook: NotebookState, *, files: bool) -> Iterator[Callable[[dict[str, Any], str], CellLeft]]:
    """Let the environment, loggers and warnings be as the notebook has them in the block, and then as they were before.

    Loggers write to this process's own streams, and with ``files`` to theirs. Gives what tells, beside
    :func:`states_left` and a directory, the variables and filters that were set in the block.
    """
    before = dict(os.environ)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        own = [known for known in warnings_set() if known not in notebook.warnings]
        _set_filters(notebook.warnings)
        for each in notebook.logging:
            logger = logging.getLogger(None if each["name"] == "root" else each["name"])
            stack.callback(_set_up, logger, logger.level, logger.propagate, list(logger.handlers))
            handlers = [_handler(handler) for handler in each["handlers"] if files or "file" not in handler]
            _set_up(logger, each["level"], each["propagate"], handlers or logger.handlers)
        stack.callback(lambda: set_environment({n: before.get(n) for n in os.environ.keys() | before.keys()}))
        set_environment(notebook.environment)
        begun = dict(os.environ)

        def left(states: dict[str, Any], directory: str) -> CellLeft:
            if not states:
                return CellLeft()
            filters = [known for known in warnings_set() if known not in own]
            changes = _changes(begun, os.environ)
            return CellLeft(**states, environment=changes, warnings=filters, directory=directory)

        yield left


def _is_the_users(logger: Any) -> bool:
    package = getattr(logger, "name", "").partition(".")[0]
    return package == "__main__" or package not in sys.modules


def _handlers(logger: logging.Logger) -> list[dict[str, Any]]:
    """What tells handlers that write to this process's own streams, or to files."""
    handlers = []
    for handler in logger.handlers:
        style = getattr(handler.formatter, "_style", None)
        known = {"level": handler.level, "format": getattr(style, "_fmt", None)}
        known |= {"dates": getattr(handler.formatter, "datefmt", None), "style": _STYLES.get(type(style).__name__, "%")}
        if type(handler) is logging.FileHandler:
            handlers.append({**known, "file": handler.baseFilename})
        elif isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr):
            handlers.append({**known, "stream": "stdout" if handler.stream is sys.stdout else "stderr"})
    return handlers


def _handler(known: Mapping[str, Any]) -> logging.Handler:
    made: logging.Handler = logging.NullHandler()
    if "stream" in known:
        made = logging.StreamHandler(getattr(sys, known["stream"]))
    else:
        with suppress(OSError):  # no such folder on this host
            made = logging.FileHandler(known["file"], delay=os.path.isdir(os.path.dirname(known["file"])))
    made.setLevel(known["level"])
    if known["format"] is not None:
        made.setFormatter(logging.Formatter(known["format"], known["dates"], known["style"]))
    return made


def _set_up(logger: logging.Logger, level: int, propagate: bool, handlers: list[logging.Handler]) -> None:
    for handler in logger.handlers:
        if handler not in handlers and isinstance(handler, logging.FileHandler):
            handler.close()
    logger.setLevel(level)
    logger.propagate, logger.handlers = propagate, handlers


def _told(known: Sequence[Any]) -> list[Any]:
    action, message, category, module, line = known
    patterns = [str(getattr(each, "pattern", each) or "") for each in (message, module)]
    return [action, patterns[0], [category.__module__, category.__qualname__], patterns[1], line]


def _before_equal_ends(filters: list[list[Any]], others: list[list[Any]]) -> list[list[Any]]:
    same = sum(takewhile(bool, map(operator.eq, reversed(filters), reversed(others))))
    return filters[: len(filters) - same]


def _set_filters(filters: Sequence[Sequence[Any]]) -> None:
    """Put ``filters`` before those of this process, but for categories that it does not have."""
    for action, message, (home, name), module, line in reversed(filters):
        with suppress(Exception):
            category: Any = reduce(getattr, name.split("."), import_module(home))
            warnings.filterwarnings(action, message, category, module, line)
