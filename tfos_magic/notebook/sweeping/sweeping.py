"""From a cell of ``%%tfos_sweep`` to a sweep, followed to its end, and the names that it gives."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tfos_magic.cluster.runs.known_runs import NAMES
from tfos_magic.errors import CaptureError, RunInterrupted, UsageError, did_you_mean
from tfos_magic.notebook.capture import capture_cell
from tfos_magic.notebook.runtime import Runtime
from tfos_magic.notebook.signals import interruptible
from tfos_magic.notebook.strategy_choice import cell_request, source_of
from tfos_magic.notebook.sweeping.views import view_of
from tfos_magic.sweeps.cell_text import BEST, STUDY, model_of, outputs_of, refuse_without_model, sets
from tfos_magic.sweeps.owners import ended_trials
from tfos_magic.sweeps.search import PRUNERS, SAMPLERS, Search
from tfos_magic.sweeps.sweep import Sweep, why_missing

LOOK_SECONDS = 0.25


def sweep_cell(shell: Any, runtime: Runtime, line: str, body: str, args: Any) -> None:
    """Search over a cell, show that, and put what ``-o`` names into the notebook, also where it was interrupted."""
    args.ps = None
    view = view_of(args.view or runtime.config.view)
    source = source_of(shell, f"%%tfos_sweep {line}", body)
    wanted, model = args.output, model_of(source) if BEST in args.output else ""
    args.output = outputs_of(source, args.metric, wanted, model)
    for name in wanted:
        if name not in (BEST, STUDY) and not sets(source, name) and did_you_mean(name, (BEST, STUDY), ""):
            raise UsageError(f"A sweep brings back its study as 'study' and its best model as 'best', not as {name!r}.")
    if BEST in wanted:
        refuse_without_model(model)
    search = _search_of(source, args, shell.user_ns)
    if _is_over(search, shell, wanted):
        return
    captured = capture_cell(source, shell.user_ns, args, runtime.session_for(args))
    name = NAMES.give("sweep")
    request = cell_request(
        source,
        name,
        captured,
        args,
        runtime.config,
        shell.user_ns,
        private_files=runtime.files.path,
        max_restarts=runtime.config.max_restarts if args.max_restarts is None else args.max_restarts,
        notices=[*captured.hints, *runtime.ignored(args)],
    )
    _say(search, args)
    if not runtime.running:
        print(f"Starting a cluster of {runtime.size_for(args)} workers ...", flush=True)
    cluster = runtime.start(args)
    cluster.check_group("--workers-per-trial", args.workers_per_trial)
    sweep = Sweep(cluster, request, search, args.workers_per_trial, args.fail_fast, model)
    try:
        _follow(sweep.start(), view)
    finally:
        shell.push(_results(sweep, wanted))
    if (error := sweep.error) is not None:
        raise error


def _search_of(source: str, args: Any, namespace: dict[str, Any]) -> Search:
    """The search that the options ask for; samplers and pruners may be names of the notebook's."""
    return Search(
        trials=args.trials,
        metric=args.metric,
        direction=args.direction,
        sampler=args.sampler if args.sampler in SAMPLERS else namespace.get(args.sampler, args.sampler),
        pruner=args.pruner if args.pruner in PRUNERS else namespace.get(args.pruner, args.pruner),
        storage=namespace.get(args.storage, args.storage),
        study_name=args.study,
        resume=args.resume,
        seed=args.seed,
        text=source,
    )


def _is_over(search: Search, shell: Any, wanted: list[str]) -> bool:
    """Whether a study that is to go on has all its trials: then nothing is trained, and the study is given."""
    if not search.resume or (ended := ended_trials(study := search.study())) < search.size:
        return False
    print(f"note: The study has {ended} trials already, so nothing is trained: more --trials go on with it.")
    if STUDY in wanted:
        shell.push({STUDY: study})
    _say_missing([name for name in wanted if name != STUDY], why_missing(study))
    return True


def _say_missing(names: list[str], why: str) -> None:
    if names:
        print(f"note: {', '.join(names)}: {why}")


def _say(search: Search, args: Any) -> None:
    if not args.direction:
        print(search.aim)


def _follow(sweep: Sweep, view: Any) -> None:
    """Show the sweep until it has ended; an interrupt ends it at the next steps of its trials."""
    view.open(sweep)
    try:
        with interruptible():
            while not sweep.runs.await_end(LOOK_SECONDS):
                view.update(sweep)
    except KeyboardInterrupt:
        sweep.stop()
        raise RunInterrupted({}, f"What is done is kept: {sweep!r}") from None
    finally:
        view.close(sweep)


def _results(sweep: Sweep, wanted: list[str]) -> dict[str, Any]:
    """What ``-o`` names: the study, the best model, and names of the best trial; what is not there is said."""
    given: dict[str, Any] = {STUDY: sweep.study} if STUDY in wanted else {}
    given |= {name: value for name, value in sweep.values.items() if name in wanted}
    if BEST in wanted and BEST not in given:
        with suppress(CaptureError):
            given[BEST] = sweep.best_now()
    missing = [name for name in wanted if name not in {STUDY, *given}]
    if BEST in missing or sweep.best_trial is None:
        _say_missing(missing, why_missing(sweep.study, sweep.trials))
    return given
