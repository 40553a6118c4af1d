"""A sweep at one moment, in words and numbers: what the panel, the card and the lines of text share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.notebook.views.wording import count_of, duration, number
from tfos_magic.sweeps.sweep import Sweep
from tfos_magic.sweeps.trial import Trial

POINTS = 32
LONG = 24
NOTICES_SHOWN = 6
ENOUGH = 8
"""So many trials must have ended well before it is said which parameters matter."""

_HEADLINES = {
    "queued": "Waiting for {workers}",
    "running": "Searching on {workers}",
    "stopping": "Stopping {workers}",
    "done": "Searched on {workers}",
    "stopped": "Stopped on {workers}",
    "failed": "The sweep failed",
}


def take_picture(sweep: Sweep) -> dict[str, Any]:
    """A sweep as the head and the messages of a run's panel take it: all but the trials."""
    phase = phase_of(sweep)
    ended, every = sweep.count("complete", "pruned", "failed", "stopped"), sweep.size
    return {
        "phase": phase,
        "ended": sweep.done,
        "headline": _HEADLINES[phase].format(workers=count_of(sweep.workers, "worker")),
        "name": sweep.name,
        "strategy": f"{sweep.search.direction} {sweep.search.metric}",
        "elapsed": duration(sweep.elapsed),
        "remaining": "" if sweep.done or not ended else f"{duration(sweep.elapsed * (every - ended) / ended)} left",
        "fraction": round(ended / every, 4) if every else 1.0,
        "position": position(sweep),
        "metrics": [{"name": name, "text": text} for name, text in best_of(sweep)],
        "pace": "",
        "notices": sweep.notices[-NOTICES_SHOWN:],
        "error": "" if sweep.error is None else str(sweep.error).split("\n", 1)[0],
    }


def phase_of(sweep: Sweep) -> str:
    """Where a sweep is, by the words of :class:`RunPhase`."""
    if sweep.done:
        return "failed" if sweep.error is not None else "stopped" if sweep.count("stopped") else "done"
    if sweep.stopping:
        return "stopping"
    return "running" if any(trial.number is not None or has_begun(trial) for trial in sweep.trials) else "queued"


def has_begun(trial: Trial) -> bool:
    """Whether a trial has workers, or had."""
    return trial.run.phase is not RunPhase.QUEUED and trial.run.state.begun


def position(sweep: Sweep) -> str:
    """How many trials have ended, and how."""
    whole, pruned, failed = sweep.count("complete", "pruned", "failed"), sweep.count("pruned"), sweep.count("failed")
    counts = {"pruned": pruned, "failed": failed, "not needed": sweep.count("spared")}
    told = [f"{count:,} {name}" for name, count in counts.items() if count]
    return " · ".join([f"{whole:,} of {count_of(sweep.size, 'trial')}", *told])


def best_of(sweep: Sweep) -> list[tuple[str, str]]:
    """The best trial so far: its metric, its number, what was chosen for it."""
    best = sweep.best_trial
    if best is None or best.value is None:
        return []
    chosen = [(name, in_words(value)) for name, value in best.params.items()]
    return [(f"best {sweep.search.metric}", number(best.value)), ("trial", str(best.number)), *chosen]


def in_words(value: Any) -> str:
    """A value that was chosen; of a long text its beginning, and a text that reads as a constant in quotes."""
    if isinstance(value, float):
        return number(value)
    text = repr(value) if value in ("None", "True", "False") else " ".join(str(value).split())
    return text if len(text) <= LONG else f"{text[: LONG - 1]}…"


def words_of(chosen: Mapping[str, Any]) -> str:
    """All that was chosen for a trial."""
    return ", ".join(f"{name} {in_words(value)}" for name, value in chosen.items())


def state_of(trial: Trial) -> str:
    """Where a trial is, in a word."""
    return trial.verdict or ("pruning" if trial.pruned else "training" if trial.curve else trial.run.phase.value)


def epoch_of(trial: Trial) -> str:
    """How many epochs a trial has trained, of how many."""
    state = trial.run.state
    done, planned = len(state.history), state.planned or state.epochs
    return f"{done:,} of {planned:,}" if planned else ""


def row_of(trial: Trial) -> list[Any]:
    """A trial as the page gets it: number, choices, state, epoch, metric, curve, error; empty before it begins."""
    if trial.number is None and not has_begun(trial):
        return []
    value = trial.value if trial.value is None or abs(trial.value) < float("inf") else None  # None for nan, too
    number_ = -1 if trial.number is None else trial.number
    return [number_, trial.params, state_of(trial), epoch_of(trial), value, _thinned(trial.curve), trial.error[:4000]]


def line_of(sweep: Sweep, trial: Trial) -> str:
    """A trial that has ended, in a line."""
    value = "" if trial.value is None else f"{sweep.search.metric} {number(trial.value)}"
    why = trial.error.split("\n", 1)[0]
    parts = [f"trial {trial.number}", trial.verdict, value, words_of(trial.params), why]
    return " · ".join(part for part in parts if part)


def summary(sweep: Sweep) -> str:
    """The sweep in a line."""
    picture = take_picture(sweep)
    best = ", ".join(f"{name} {text}" for name, text in best_of(sweep))
    lead = f"{picture['headline']} {'in' if picture['phase'] == 'done' else 'after'} {picture['elapsed']}"
    return " · ".join(part for part in (lead, picture["position"], best, picture["error"]) if part)


def importance(sweep: Sweep) -> list[list[Any]]:
    """What share of the differences among good trials each parameter has (PED-ANOVA), the largest first.

    Of the parameters that all completed trials have; empty while there are few trials.
    """
    import optuna

    if sweep.count("complete") < ENOUGH:
        return []
    known = [trial for trial in sweep.trials if trial.verdict == "complete"]
    shared = sorted(set.intersection(*(set(trial.params) for trial in known)))
    if len(shared) < 2:
        return []
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    try:
        shares = optuna.importance.get_param_importances(sweep.study, evaluator=evaluator, params=shared)
    except (ValueError, RuntimeError):  # of spaces that change from trial to trial, which it does not take
        return []
    return [[name, round(float(share), 4)] for name, share in shares.items()]


def _thinned(curve: Mapping[int, float]) -> list[list[Any]]:
    """At most about ``POINTS`` of the points, the last always; values that are not finite are gaps."""
    points = list(curve.items())
    each = -(-len(points) // POINTS) or 1
    kept = points[::each] + ([points[-1]] if points and (len(points) - 1) % each else [])
    return [[epoch, float(f"{value:.5g}") if abs(value) < float("inf") else None] for epoch, value in kept]
