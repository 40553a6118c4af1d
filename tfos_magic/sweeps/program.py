"""The sweep of a program: ``cluster.sweep``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from tfos_magic.cluster.runs.request import RETURNED, RunRequest
from tfos_magic.cluster.runs.submit_options import RunOptions, check_names, request_of
from tfos_magic.cluster.worker_group import WorkerGroup
from tfos_magic.errors import UsageError
from tfos_magic.sweeps.cell_text import model_of, outputs_of, text_of
from tfos_magic.sweeps.search import Search
from tfos_magic.sweeps.sweep import Sweep


def sweep_of(
    cluster: WorkerGroup,
    cell: str | Callable[..., Any],
    search: Mapping[str, Any],
    workers_per_trial: int,
    fail_fast: bool,
    options: Mapping[str, Any],
) -> Sweep:
    """The sweep of a ``cell`` or function, with the fields of a :class:`Search` and the ``options`` of a run."""
    unknown = options.keys() - RunOptions.__annotations__.keys() - RunRequest.__dataclass_fields__.keys()
    check_names(unknown, [*RunOptions.__annotations__, *search, "workers_per_trial", "fail_fast"], "sweep")
    if kept := [name for name in ("checkpoint_dir", "observer") if options.get(name)]:
        raise UsageError(f"A sweep has no {kept[0]}: a trial that loses its worker starts again.")
    asked = tuple(options.get("outputs", ()))
    model = model_of(cell) if isinstance(cell, str) else RETURNED
    outputs = outputs_of(cell, search["metric"], asked, model) if isinstance(cell, str) else asked
    request = request_of(cell, **{**options, "outputs": outputs})
    searched = Search(**search, seed=request.seed, text=text_of(cell))
    if not search.get("direction"):
        print(searched.aim, file=sys.stderr, flush=True)
    return Sweep(cluster, request, searched, workers_per_trial, fail_fast, model, aloud=True)
