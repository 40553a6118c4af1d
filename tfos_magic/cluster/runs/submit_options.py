"""What a program asks of a run, by names: the options of ``submit``, ``run`` and ``distributed``."""

from __future__ import annotations

import inspect
import re
import symtable
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from keyword import iskeyword
from typing import Any, TypedDict

from tfos_magic.cluster.runs.request import RETURNED, Observer, RunRequest, frame_use, simple_values, switch
from tfos_magic.columns.missing import NOTHING_MISSING, Missing
from tfos_magic.columns.selection import Selection
from tfos_magic.errors import CaptureError, UsageError, did_you_mean
from tfos_magic.transport.messages import StrategyOptions
from tfos_magic.values import pack, suggestions

_OPEN_ENDED = re.compile(r"\bimport\s*\*|\b(exec|eval|globals|locals|vars|setattr)\s*\(")
ITEM = "item"
"""What a cell that is mapped calls its item."""


class RunOptions(TypedDict, total=False):
    """Options of a run, all of which may be left out.

    Attributes
    ----------
    name: what the run is called.
    names: values that the code may use, by name.
    frames: DataFrames (of Spark, pandas or polars, Arrow tables, or dicts of arrays) by name. The code gets each as
        this worker's ``tf.data.Dataset``: ``(features, label)`` where ``label`` names a column, else a dict of columns.
    features: columns that are features; all but the label and the weight, unless named.
    label: the column that is the label.
    weight: a column that weighs rows.
    matrix: puts the features side by side, as :class:`~tfos_magic.columns.selection.Selection` says.
    missing: what nulls and short arrays become, as in ``Missing.of(fill={"age": 0}, pad=0)``.
    batch_size: rows of a step over all workers; 32.
    shuffle: whether fed rows come in another order in each epoch; True.
    seed: seeds the order of rows and the workers' generators. Without one, a run goes on with this process's states.
    outputs: names that come back from worker 0.
    strategy: ``sync`` (the default), ``local``, ``async`` or ``none``.
    options: those of the strategy, by the names of :class:`~tfos_magic.transport.messages.StrategyOptions`.
    log_dir: a folder for TensorBoard's scalars and the event files of worker 0.
    checkpoint_dir: a path or URL for checkpoints. Left out, they are kept for this run's restarts alone.
    checkpoint_every: steps between two checkpoints; 0, the default, means one for each epoch.
    keep_checkpoints: how many stay, besides the last one of an epoch's beginning; 3.
    resume: goes on from the newest checkpoint in ``checkpoint_dir``.
    max_restarts: lost workers that the run survives; 2.
    observer: an object whose ``update(state)`` and ``output(text, stream)`` are called from the run's thread.
    """

    name: str
    names: Mapping[str, Any] | None
    frames: Mapping[str, Any] | None
    features: Sequence[str] | None
    label: str | None
    weight: str | None
    matrix: bool
    missing: Missing
    batch_size: int
    shuffle: bool
    seed: int | None
    outputs: Sequence[str]
    strategy: str
    options: Mapping[str, Any] | None
    log_dir: str
    checkpoint_dir: str
    checkpoint_every: int
    keep_checkpoints: int
    resume: bool
    max_restarts: int
    observer: Observer | None


def check_names(
    unknown: Collection[str], known: Collection[str] = RunOptions.__annotations__, what: str = "run"
) -> None:
    """Raise :class:`UsageError` for what is no option of a run, or of ``what`` has the ``known`` ones."""
    if unknown:
        hint = did_you_mean(min(unknown), known, f"There are {', '.join(known)}.")
        raise UsageError(f"A {what} has no option {min(unknown)!r}. {hint}")


def request_of(
    cell: str | Callable[..., Any],
    *,
    names: Mapping[str, Any] | None = None,
    frames: Mapping[str, Any] | None = None,
    features: Sequence[str] | None = None,
    label: str | None = None,
    weight: str | None = None,
    matrix: bool = False,
    missing: Missing = NOTHING_MISSING,
    outputs: Sequence[str] = (),
    strategy: str = "sync",
    options: Mapping[str, Any] | None = None,
    **rest: Any,
) -> RunRequest:
    """The request for a run of ``cell``: its text, or a function that takes names and frames by its parameters' names.

    Raises :class:`DataError` for a DataFrame that cannot be fed as asked, :class:`UsageError` for options that do not
    fit.
    """
    check_names(rest.keys() - RunRequest.__dataclass_fields__.keys())
    if names is not None and not isinstance(names, Mapping):
        raise UsageError(f"names is {type(names).__name__}: give a dict, such as names={{'rate': 0.1}}.")
    names, frames, chosen = dict(names or {}), frames or {}, suggestions.chosen()
    features = [features] if isinstance(features, str) else features
    outputs = [outputs] if isinstance(outputs, str) else outputs
    selection = Selection.of(features, label, weight, switch("matrix", matrix))
    if isinstance(cell, str):
        _refuse_undefined(cell, outputs or (), {*names, *frames})
    if not isinstance(cell, str):
        called = _free_name(cell, {*names, *frames})
        cell, names = call_of(cell, called, [*names, *frames]), {**names, called: cell}
        outputs = [*(outputs or ()), RETURNED]
    return RunRequest(
        source=cell,
        names={**names, suggestions.SUGGESTED: chosen} if chosen else names,
        simple=chosen,
        frames={name: frame_use(name, frame, selection, missing) for name, frame in frames.items()},
        outputs=outputs or (),
        strategy=strategy,
        options=StrategyOptions.of(strategy, options or {}),
        **rest,
    )


def _refuse_undefined(cell: str, outputs: Sequence[str], given: Collection[str]) -> None:
    """Raise :class:`CaptureError` for a name asked back that the text, which may not be valid, does not define."""
    with suppress(SyntaxError):
        table = symtable.symtable(cell, "<cell>", "exec")
        names = {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}
        names |= {each for function in _functions(table) for each in function.get_globals()} | {*given}
        if not _OPEN_ENDED.search(cell) and (missing := [name for name in outputs if name not in names]):
            hint = did_you_mean(missing[0], names, "Give it a value there, or leave it out.")
            raise CaptureError(f"outputs asks for {missing[0]!r}, which the code does not define. {hint} Nothing ran.")


def _functions(table: symtable.SymbolTable) -> Iterator[symtable.Function]:
    """All functions of a text, however deep."""
    for child in table.get_children():
        if isinstance(child, symtable.Function):
            yield child
        yield from _functions(child)


def map_requests(
    cell: str | Callable[..., Any],
    items: Sequence[Any],
    *,
    name: str = "map",
    names: Mapping[str, Any] | None = None,
    log_dir: str = "",
    checkpoint_dir: str | Sequence[str] = "",
    **options: Any,
) -> list[RunRequest]:
    """The requests for runs of ``cell``, one for each of ``items``, which the text has by the name ``item``, and a
    function as its first argument. Each keeps its logs and checkpoints in a folder of its own, called by its number, or
    where ``checkpoint_dir`` names one for each.

    Raises what :func:`request_of` raises, and :class:`CaptureError` for an item that cannot be sent.
    """
    if not items:
        raise UsageError("There are no items to map.")
    values, called = dict(names or {}), ITEM
    if not isinstance(cell, str):
        called = next(iter(inspect.signature(cell).parameters), ITEM)
    if called in values or called in options.get("frames", ()):
        raise UsageError(f"{called!r} is the item's name: rename the value in names or frames.")
    request = request_of(cell, names={**values, called: None}, **options)
    if isinstance(checkpoint_dir, str):
        checkpoint_dir = [checkpoint_dir and f"{checkpoint_dir}/{index}" for index in range(len(items))]
    payload = pack({name: value for name, value in request.names.items() if name != called})
    return [
        replace(
            request,
            name=f"{name} {index}",
            payload=payload,
            item=_packed_item(called, item, index),
            simple={**request.simple, **simple_values({called: item})},
            log_dir=log_dir and f"{log_dir}/{index}",
            checkpoint_dir=checkpoint_dir[index],
            detached=True,
        )
        for index, item in enumerate(items)
    ]


def _packed_item(name: str, item: Any, index: int) -> bytes:
    try:
        return pack({name: item})
    except Exception as error:  # any object of the user's may refuse in its own way
        raise CaptureError(f"Item {index} cannot be sent to the workers: {type(error).__name__}: {error}") from None


def call_of(function: Callable[..., Any], called: str, names: Iterable[str]) -> str:
    """The text of a cell that calls a function, ``called`` so there, with those of ``names`` that it takes."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    taken = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    given = [name for name in names if takes_all or name in taken]
    if missing := [p.name for p in parameters if p.default is p.empty and p.name in taken and p.name not in given]:
        raise UsageError(f"{_name(function)} takes {missing[0]!r}, which is neither in names nor in frames.")
    return f"{RETURNED} = {called}({', '.join(f'{name}={name}' for name in given)})"


def _free_name(function: Callable[..., Any], taken: Collection[str]) -> str:
    name = str(getattr(function, "__name__", ""))
    name = name if name.isidentifier() and not iskeyword(name) else "function"
    while name in {*taken, RETURNED}:
        name += "_"
    return name


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "the function"))
