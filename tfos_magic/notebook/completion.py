"""Completion on the magics' own lines: commands, options, and the names of the notebook that belong after them."""

from __future__ import annotations

import shlex
from argparse import Action
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.magic_arguments import MagicArgumentParser

from tfos_magic.cluster.runs.known_runs import KnownRuns
from tfos_magic.errors import UsageError
from tfos_magic.notebook.names import CellNames, analyse
from tfos_magic.notebook.subcommands import COMMANDS

IDENTIFIER = "tfos_magic"
_PATHS = ("--log-dir", "--checkpoint-dir", "logdir")


@dataclass(frozen=True)
class _Line:
    """A magic's line up to the cursor: its finished words, the option the cursor is a value of, and the cell below."""

    words: list[str]
    option: str
    typed: str
    cell: str


def completer(
    namespace: Mapping[str, Any], magics: Mapping[str, MagicArgumentParser], known: KnownRuns
) -> Callable[..., Any]:
    """A matcher for IPython that knows ``%tfos`` and ``magics``, by their signs and names; ``namespace`` and the runs
    that are ``known`` are the notebook's."""

    @context_matcher(identifier=IDENTIFIER)
    def match(context: CompletionContext) -> SimpleMatcherResult:
        """Offer what fits on a line of ours, and nothing anywhere else: bodies of cells are plain Python."""
        line = context.text_until_cursor
        magic, _, rest = line.lstrip().partition(" ")
        body = context.full_text.partition("\n")[2]
        if magic == "%tfos":
            command, space, options = rest.lstrip().partition(" ")
            if not space:
                return _result(COMMANDS, context.token, "magic")
            if command == "compare":
                return _result(_run_names(known, options), context.token, "run")
            parser = COMMANDS[command].parser if command in COMMANDS else None
            body = ""
        elif " " in line.lstrip() and (context.cursor_line == 0 or not magic.startswith("%%")):
            parser, options = magics.get(magic), rest
        else:
            parser, options = None, ""
        if parser is None:
            return _result([], context.token, "")
        return _complete(parser, _read(parser, options, body), context.token, namespace)

    return match


def _run_names(known: KnownRuns, options: str) -> list[str]:
    """The names of runs as one writes them there, in quotes where they have a space."""
    names = dict.fromkeys(run.name for run in known.runs)
    if options.endswith('"'):
        return [f'{name}"' for name in names]
    return [f'"{name}"' if " " in name else name for name in names]


def _read(parser: MagicArgumentParser, options: str, cell: str) -> _Line:
    words = _split(options)
    typed = "" if not options or options[-1].isspace() else words.pop() if words else ""
    before = words[-1] if words else ""
    action = _action(parser, before)
    return _Line(words, before if action is not None and action.nargs != 0 else "", typed, cell)


def _split(options: str) -> list[str]:
    try:
        return shlex.split(options, posix=False)
    except ValueError:  # a quote that is still open
        return options.split()


def _action(parser: MagicArgumentParser, word: str) -> Action | None:
    return next((action for action in parser._actions if word in action.option_strings), None)


def _complete(
    parser: MagicArgumentParser, line: _Line, token: str, namespace: Mapping[str, Any]
) -> SimpleMatcherResult:
    if not line.option:
        given = [] if line.typed.startswith("-") else _positional(parser, line.words, namespace)
        return _result([*given, *_unused(parser, line.words)], token, "option")
    if line.option in _PATHS:
        return _result([], token, "")
    action = _action(parser, line.option)
    if action is not None and action.choices:
        return _result(map(str, action.choices), token, "value")
    return _result(*_names_for(action.dest if action else "", line, token, namespace))


def _positional(parser: MagicArgumentParser, words: list[str], namespace: Mapping[str, Any]) -> list[str]:
    """Names of the notebook for the argument that comes next by its place: a model, a DataFrame."""
    wanted = [action.dest for action in parser._actions if not action.option_strings]
    given = [word for place, word in enumerate(words) if not word.startswith("-") and not _takes(parser, words[:place])]
    kinds = {"model": _is_model, "frame": _is_frame}
    fits = kinds.get(wanted[len(given)]) if len(given) < len(wanted) else None
    return [name for name, value in namespace.items() if fits and not name.startswith("_") and fits(value)]


def _takes(parser: MagicArgumentParser, words: list[str]) -> bool:
    """Whether what follows ``words`` is the value of an option."""
    action = _action(parser, words[-1]) if words else None
    return action is not None and action.nargs != 0


def _unused(parser: MagicArgumentParser, words: list[str]) -> list[str]:
    """The long names of options that the line does not have yet; those that may be repeated always."""
    free = [a for a in parser._actions if isinstance(a.default, list) or not set(a.option_strings) & set(words)]
    return [name for action in free for name in action.option_strings if name.startswith("--") or len(name) == 2]


def _names_for(what: str, line: _Line, token: str, namespace: Mapping[str, Any]) -> tuple[Iterable[str], str, str]:
    """The candidates for an option's value, the fragment they complete, and their kind."""
    frames = {name: value for name, value in namespace.items() if not name.startswith("_") and _is_frame(value)}
    cell = _names_of(line.cell)
    if what == "feed":
        return (frames, token, "dataframe") if "=" in line.typed else ((f"{f}={f}" for f in frames), token, "dataframe")
    if what in ("label", "weight", "features", "null_mask", "fill", "pad"):
        read = {*cell.reads, *line.words}
        used = {name: frame for name, frame in frames.items() if name in read} or frames
        sign = "=" if what in ("fill", "pad") else ""
        return dict.fromkeys(f"{column}{sign}" for frame in used.values() for column in frame.columns), token, "column"
    if what == "output":
        return sorted(cell.defines), token, "name"
    if what == "push":
        return (name for name in namespace if not name.startswith("_")), token, "name"
    return [], token, ""


def _names_of(cell: str) -> CellNames:
    try:
        return analyse(cell, "<cell>")
    except UsageError:  # half typed
        return CellNames((), frozenset(), False)


def _is_model(value: Any) -> bool:
    return any(kind.__name__ == "Model" and kind.__module__.startswith("keras.") for kind in type(value).__mro__)


def _is_frame(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "DataFrame" and kind.__module__.startswith(("pyspark.sql", "pandas", "polars"))


def _result(candidates: Iterable[str], token: str, kind: str) -> SimpleMatcherResult:
    """Those that go on from ``token``; where there are any, nothing else is offered."""
    completions = [SimpleCompletion(text, type=kind) for text in candidates if text.startswith(token)]
    return SimpleMatcherResult(
        completions=completions, suppress=bool(completions), ordered=True, matched_fragment=token, do_not_suppress=set()
    )
