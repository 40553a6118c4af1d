"""The runs of a search as rows of one table, however often a cell asks for more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pkgutil import resolve_name
from typing import Any

from IPython.display import display

from tfos_magic.cluster.runs.run import Run
from tfos_magic.notebook.views.choice import chosen, request_of_cell
from tfos_magic.notebook.views.wording import duration, number

_SHOWN: dict[str, Any] = {}
"""The table of the cell that ran last, by the cell and the estimator."""


def show(uid: str, runs: Mapping[str, Run]) -> None:
    """Show ``runs`` by their names, beside those of the same cell and estimator: the folds of a cross-validation."""
    if chosen() != "widget":
        for name, run in runs.items():
            run.on_change(partial(_print, name))
        return
    key = f"{(request_of_cell() or {}).get('header', {}).get('msg_id', '')} {uid}"
    if key not in _SHOWN:
        _SHOWN.clear()
        _SHOWN[key] = resolve_name("tfos_magic.widgets:Compare")()
        display(_SHOWN[key])
    table = _SHOWN[key]
    fold = len(table.runs) // len(runs) + 1
    for name, run in runs.items():
        table.add(run, f"fold {fold}: {name}" if fold > 1 else name)


def _print(name: str, run: Run) -> None:
    if run.done:
        metrics = ", ".join(f"{metric} {number(value)}" for metric, value in run.state.metrics.items())
        print(f"{name}: {run.phase.value} in {duration(run.state.elapsed)}, {metrics}", flush=True)
