"""The runs of a search as rows of one table, however often a cell asks for more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any

from IPython.display import display

from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.notebook.views.choice import chosen, request_of_cell
from tfos_magic.notebook.views.wording import duration, number

_SHOWN: dict[str, tuple[Any, int]] = {}
"""The table of the cell that ran last, none where there is text, and how many folds it has, by cell and estimator."""


def show(uid: str, runs: Mapping[str, Run]) -> None:
    """Show ``runs`` by their names, beside those of the same cell and estimator: the folds of a cross-validation."""
    request = request_of_cell()
    key = f"{(request or {}).get('header', {}).get('msg_id', '')} {uid}"
    if key not in _SHOWN:
        _SHOWN.clear()
        table = resolve_name("tfos_magic.widgets:Compare")() if chosen() == "widget" else None
        _SHOWN[key] = table, 0
        if table is not None:
            display(table)
    table, folds = _SHOWN[key]
    _SHOWN[key] = table, folds + 1
    for name, run in runs.items():
        label = f"fold {folds + 1}: {name}" if folds and request is not None else name
        if table is not None:
            table.add(run, label)
        else:
            run.on_change(partial(_print, label))


def _print(name: str, run: Run) -> None:
    if run.done and run.phase is not RunPhase.STOPPED:  # of which the next cell would tell
        metrics = [f"{metric} {number(value)}" for metric, value in run.state.metrics.items()]
        words = ", ".join([f"{name}: {run.phase.value} in {duration(run.state.elapsed)}", *metrics])
        print(f"{words}\n", end="", flush=True)  # in one piece: others print as well
