"""What a cell needs of the notebook: values to send, modules to import, DataFrames to feed."""

from __future__ import annotations

import builtins
import dis
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from tfos_magic.cluster.runs.request import FrameUse, frame_use
from tfos_magic.columns.missing import NOTHING_MISSING, Missing
from tfos_magic.columns.selection import EVERYTHING, Selection
from tfos_magic.errors import CaptureError, DataError, UsageError, did_you_mean
from tfos_magic.notebook.names import GIVEN, CellNames, analyse
from tfos_magic.spark.local_tables import is_table, to_spark
from tfos_magic.spark.session import is_dataframe
from tfos_magic.values import CUSTOM_OBJECTS, keras_state, pack

HINT_BYTES = 100_000_000

_DEFINE = (
    "Define it in this cell, or in one of the notebook's own: what a cell with %%tfos_train defines or imports stays "
    "on the workers, but for the names that its -o brings back."
)


_MAGIC = re.compile(r"get_ipython\(\)\.(\w+)\('([^']*)'(?:, '(.*)')?\)")
"""What IPython makes of line magics and shell commands."""


_MLFLOW = re.compile(r"^(?!\s*#).*\bmlflow\.(\w+\.)?(autolog|start_run)\(", re.MULTILINE)
_DISPLAYS = ("IPython.core.display_functions", "IPython.display")
_LOGGED = (
    "The cell logs in MLflow by itself, and so does every worker: MLflow has a run of each. Leave that out and say "
    "--mlflow, which logs one run."
)


@dataclass(frozen=True)
class Captured:
    """A cell's needs, ready to be sent. ``payload`` is what ``pack`` makes of the ``values``."""

    payload: bytes
    values: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[str, FrameUse] = field(default_factory=dict)
    large: str = ""
    unknown: str = ""
    converted: str = ""
    logged: str = ""

    @property
    def hints(self) -> list[str]:
        """What the user should know beforehand: of a name that functions alone read and that there is not, of runs that
        the cell itself logs, and of a payload larger than ordinary ones, which every worker is sent whole."""
        return [text for text in (self.unknown, self.converted, self.logged, self._of_size()) if text]

    def _of_size(self) -> str:
        if not self.large:
            return ""
        return (
            f"The cell takes {len(self.payload) / 1e6:,.0f} MB of values from the notebook, {self.large!r} the most, "
            "and every worker is sent all of it: a Spark DataFrame is shared out among the workers instead."
        )


def capture_cell(
    source: str, namespace: Mapping[str, Any], args: Any, session: Callable[[], Any] | None = None
) -> Captured:
    """What the cell needs, as the options of its magic say. Raises what :func:`capture` raises."""
    names = analyse(source, "<cell>")
    outputs = getattr(args, "output", None) or ()
    refuse_magics(names, source)
    refuse_undefined(names, namespace, outputs)
    captured = capture(
        names,
        namespace,
        feeds=dict(args.feed),
        push=[*args.push, *_kept(names, namespace, outputs)],
        selection=Selection.of(args.features, args.label, args.weight, args.matrix),
        missing=Missing.of(args.fill, args.pad, args.null_mask),
        session=session,
    )
    return replace(captured, logged=_LOGGED if _MLFLOW.search(source) else "")


def capture(
    names: CellNames,
    namespace: Mapping[str, Any],
    *,
    feeds: Mapping[str, str],
    push: Sequence[str],
    selection: Selection = EVERYTHING,
    missing: Missing = NOTHING_MISSING,
    session: Callable[[], Any] | None = None,
) -> Captured:
    """Take from ``namespace`` what the cell reads, what ``push`` names, and under each name of ``feeds`` a DataFrame.

    ``missing`` says what nulls and short arrays of the DataFrames become. ``session`` gives the session in which tables
    of this process become DataFrames.

    Raises :class:`CaptureError` for a name that does not exist or cannot be pickled and :class:`DataError` for a
    DataFrame that cannot be fed as asked. Nothing has been started by then.
    """
    shadowing = sorted(name for name in names.builtins if _shadows(name, namespace))
    requested_names = [name for name in dict.fromkeys([*names.reads, *shadowing, *push]) if name not in feeds]
    unknown = _missing([*requested_names, *feeds.values()], names, namespace, push)
    objects = {name: namespace[name] for name in requested_names if name in namespace}
    if getattr(objects.get("display"), "__module__", "") in _DISPLAYS:  # workers have one of their own
        del objects["display"]
    frames = {name: value for name, value in objects.items() if is_dataframe(value)}
    frames.update({name: _as_dataframe(source, namespace, session) for name, source in feeds.items()})
    if (selection != EVERYTHING or missing != NOTHING_MISSING) and not frames:
        tables = [name for name, value in objects.items() if is_table(value)]
        hint = (
            f"{tables[0]} is sent as it is: --feed {tables[0]}={tables[0]} feeds it as one."
            if tables
            else "One within a list, a dict or an object is not seen: give it a name of its own. See --feed NAME=DF."
        )
        raise UsageError(
            "--features, --label, --weight, --matrix, --pad, --fill and --null-mask are about DataFrames of Spark, and "
            f"the cell names none. {hint}"
        )
    modules = {name: value.__name__ for name, value in objects.items() if isinstance(value, ModuleType)}
    values = {name: value for name, value in objects.items() if name not in frames and name not in modules}
    payload = _pickle(values)
    return Captured(
        payload=payload,
        values=tuple(values),
        modules=modules,
        frames={name: frame_use(name, frame, selection, missing) for name, frame in frames.items()},
        large=_largest(values) if len(payload) > HINT_BYTES else "",
        unknown=unknown,
        converted=_of_converted([source for source in feeds.values() if not is_dataframe(namespace[source])]),
    )


def refuse_magics(names: CellNames, source: str) -> None:
    """Raise :class:`UsageError` for what the notebook alone can run, by its line and with what to write instead."""
    if "get_ipython" not in names.reads:
        return
    lines = enumerate(source.splitlines(), 1)
    number, line = next(((number, line) for number, line in lines if "get_ipython" in line), (0, ""))
    call = _MAGIC.search(line)
    kind, name, rest = call.groups() if call else ("", "", "")
    advice = "Take it out, or put it in a cell of its own."
    if kind in ("run_line_magic", "run_cell_magic"):
        what = f"the magic {'%' if kind == 'run_line_magic' else '%%'}{name}"
        if name in ("time", "timeit"):
            instead = f": write {rest}" if rest and not rest.startswith("-") else ""
            advice = f"Leave it out{instead}. How long a run takes is shown below the cell."
        elif name == "matplotlib":
            advice = "Leave it out: figures that a cell draws are shown without it."
    elif kind:
        what, advice = "a shell command", "Put it in a cell of its own, before this one, or call subprocess.run."
    else:
        what = "get_ipython()"
    raise UsageError(f"Line {number} of the cell is {what}, which only the notebook can run. {advice}")


def refuse_undefined(names: CellNames, namespace: Mapping[str, Any], outputs: Sequence[str]) -> None:
    """Raise :class:`CaptureError` for a name asked back that neither the cell nor the notebook defines."""
    if names.open_ended or names.dynamic:
        return
    for name in outputs:
        if name in names.defines or name in namespace or any(_sets(value, name) for value in namespace.values()):
            continue
        hint = did_you_mean(name, names.defines, "Give it a value there, or take it out of -o.")
        raise CaptureError(f"-o asks for {name!r} back, which the cell does not define. {hint} Nothing was started.")


def _kept(names: CellNames, namespace: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
    """Names asked back that the cell leaves to what it calls to change, such as a list that a callback fills."""
    there = [name for name in outputs if name in namespace and name not in names.defines and not names.open_ended]
    return [name for name in there if not (is_dataframe(namespace[name]) or isinstance(namespace[name], ModuleType))]


def _of_converted(names: Sequence[str]) -> str:
    return f"{', '.join(names)} became a Spark DataFrame, as it is now, and is fed as one." if names else ""


def _largest(values: Mapping[str, Any]) -> str:
    """The name of the value with the most bytes, as values themselves tell or their pickles."""
    return max(values, key=lambda name: getattr(values[name], "nbytes", 0) or len(cloudpickle.dumps(values[name])))


def _missing(
    requested_names: Sequence[str], names: CellNames, namespace: Mapping[str, Any], push: Sequence[str]
) -> str:
    """A sentence on a name that there is not and that functions alone read; raises for one that is read at once."""
    defined_names = namespace.keys() | GIVEN
    missing = [name for name in requested_names if name not in defined_names and (name in push or not names.open_ended)]
    asked = {name for name in missing if name in push}
    missing = [name for name in missing if name in asked or not _may_have(name, names, namespace)]
    if not missing:
        return ""
    name = next((name for name in missing if name in push or name not in names.later), missing[0])
    known = [key for key in namespace if not key.startswith("_")]
    hint = did_you_mean(name, known, _DEFINE, cutoff=0.75)
    if (name in names.later or names.dynamic) and name not in push:
        who = "A function or a branch of the cell" if name in names.later else "The cell"
        return f"{who} reads the name {name!r}, which the notebook does not have. {hint}"
    raise CaptureError(f"The cell reads the name {name!r}, which the notebook does not have. {hint}")


def _may_have(name: str, names: CellNames, namespace: Mapping[str, Any]) -> bool:
    """Whether the cell may have the name by itself when it comes to read it."""
    return name in names.perhaps or any(_sets(value, name) for value in namespace.values())


def _sets(value: Any, name: str) -> bool:
    """Whether a function of the notebook sets a name by ``global``, as one that the cell calls may."""
    code = getattr(value, "__code__", None) if isinstance(value, FunctionType) else None
    return (
        code is not None
        and name in code.co_names
        and any(
            instruction.opname == "STORE_GLOBAL" and instruction.argval == name
            for instruction in dis.get_instructions(code)
        )
    )


def _as_dataframe(name: str, namespace: Mapping[str, Any], session: Callable[[], Any] | None) -> Any:
    value = namespace[name]
    if is_dataframe(value):
        return value
    if session is None or not is_table(value):
        raise UsageError(
            f"--feed: {name!r} is {type(value).__name__}, and no DataFrame of Spark, pandas or polars, no Arrow table "
            "and no dict of arrays."
        )
    with DataError.of(f"--feed: {name!r}"):
        return to_spark(value, session)


def _pickle(values: Mapping[str, Any]) -> bytes:
    """Pickle all values together, so that what they share stays shared; on failure find out which one it was."""
    for name, value in values.items():
        _refuse_spark(name, value)
    custom = keras_state.custom_objects()
    for left_out in ({}, dict(_unpicklable(custom))) if custom else ():
        known = {name: obj for name, obj in custom.items() if name not in left_out}
        with suppress(Exception):  # what nobody asked for may refuse in its own way
            return pack({**values, CUSTOM_OBJECTS: known})
    try:
        return pack(values)
    except Exception as error:
        name, reason = next(_unpicklable(values), (next(iter(values)), error))
    value, by = values[name], ""
    if isinstance(value, FunctionType):
        read = {each: value.__globals__[each] for each in value.__code__.co_names if each in value.__globals__}
        if inner := next(_unpicklable(read), None):
            (by, reason), value = inner, read[inner[0]]
    through = f", which reads {by!r}," if by else ""
    raise CaptureError(f"The name {name!r}{through} cannot be sent to the workers: {_explained(value, reason)}")


def _explained(value: Any, reason: Exception) -> str:
    """Why a value cannot be pickled, and what to do."""
    if "CONTEXT_ONLY_VALID_ON_DRIVER" in str(reason):
        return (
            "it holds a Spark DataFrame, as a list, a dict or a function may. Let the cell name the DataFrame itself, "
            "which is then fed, and give it to functions as an argument."
        )
    if "Dataset" in type(value).__name__ and type(value).__module__.startswith("tensorflow."):
        return f"{reason}".rstrip(".") + "."
    text = f"{type(reason).__name__}: {reason}".rstrip(".")
    return f"{text}. Make it inside the cell, or let the cell read plain values, arrays and functions instead."


def _unpicklable(values: Mapping[str, Any]) -> Any:
    for name, value in values.items():
        try:
            pack({name: value})
        except Exception as error:  # any object of the user's may refuse in its own way
            yield name, error


def _refuse_spark(name: str, value: Any) -> None:
    kind = type(value)
    if kind.__module__.startswith("pyspark") and kind.__name__ in ("SparkSession", "SparkContext"):
        raise CaptureError(
            f"The cell reads {name!r}, a {kind.__name__}, which lives in the notebook's process only. Prepare "
            "DataFrames in an earlier cell: the cell gets a DataFrame that it names as a tf.data.Dataset."
        )


def _shadows(name: str, namespace: Mapping[str, Any]) -> bool:
    """Whether the notebook has a built-in name of its own, as after ``from numpy import *``; IPython's are none."""
    if name not in namespace or namespace[name] is getattr(builtins, name):
        return False
    value = namespace[name]
    return not any(str(getattr(of, "__module__", "")).startswith("IPython.") for of in (value, type(value)))
