"""What a run looks like at one moment, in words and numbers: the part that all views share.

Wording and number formats are decided here once, so that the panel, the card and the terminal say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from itertools import islice
from typing import Any

from tfos_magic.cluster.runs.state import FeedState, RunPhase, RunState
from tfos_magic.cluster.startup import SAY_SECONDS
from tfos_magic.notebook.views.charts import Chart, take_charts, without_chart
from tfos_magic.notebook.views.time_spent import WAITING, seconds_by_phase, told
from tfos_magic.notebook.views.wording import count_of, duration, number, of, pace, size, traffic
from tfos_magic.notebook.views.worker_rows import WorkerRow, straggler, worker_rows

NOTICES_SHOWN = 6
METRICS_SHOWN = 24
NAMES_SHOWN = 3

_HEADLINES = {
    RunPhase.QUEUED: "Waiting for {workers}",
    RunPhase.STARTING: "Starting on {workers}",
    RunPhase.FEEDING: "Feeding {workers}",
    RunPhase.RUNNING: "Training on {workers}",
    RunPhase.STOPPING: "Stopping {workers}",
    RunPhase.DONE: "Trained on {workers}",
    RunPhase.STOPPED: "Stopped on {workers}",
    RunPhase.FAILED: "Training failed",
}

_PREPARING = {
    RunPhase.QUEUED: "next when the workers are free",
    RunPhase.STARTING: "waiting for the workers",
    RunPhase.FEEDING: "rows on their way to the workers",
    RunPhase.RUNNING: "before the first step",
    RunPhase.STOPPING: "until the next step that all workers share",
}


@dataclass(frozen=True)
class Metric:
    """A metric's name and its value, ready to read."""

    name: str
    text: str


@dataclass(frozen=True)
class FeedPicture:
    """One DataFrame: its name and, in words, how much came and how far it is; ``done`` when all is there."""

    name: str
    text: str
    done: bool
    state: str


@dataclass(frozen=True)
class Phase:
    """What a part of the run's time went to; ``share`` is of all of it, 0 to 1."""

    name: str
    share: float
    text: str


@dataclass(frozen=True)
class Picture:
    """A run in words. ``fraction`` is None where the end is not known.

    ``fit`` says which one the curves are of, where the cell has several, and ``more`` which metrics have none.
    """

    phase: str
    ended: bool
    headline: str
    name: str
    strategy: str
    elapsed: str
    remaining: str
    fraction: float | None
    position: str
    metrics: list[Metric]
    pace: str
    traffic: str
    feeds: list[FeedPicture]
    phases: list[Phase]
    workers: list[WorkerRow]
    charts: list[Chart]
    fit: str
    more: str
    notices: list[str]
    error: str

    def as_json(self) -> dict[str, Any]:
        """Plain lists, dicts, strings and finite numbers."""
        plain: dict[str, Any] = _plain(self)
        return plain


def take_picture(
    state: RunState, metrics: Iterable[str] = (), rows: Callable[[RunState], list[WorkerRow]] = worker_rows
) -> Picture:
    """Put ``state`` in words. ``metrics`` have charts, however many there are before them; ``rows`` gives those of the
    workers."""
    return Picture(
        phase=state.phase.value,
        ended=state.phase.ended,
        headline=_headline(state),
        name=state.name,
        strategy=state.strategy,
        elapsed=duration(state.elapsed),
        remaining=f"{duration(left)} left" if (left := state.remaining) else "",
        fraction=_fraction(state),
        position=awaiting(state) or position(state) or preparing(state),
        metrics=_metrics(state),
        pace=pace(state.rows_per_second),
        traffic=traffic(state.sent_per_epoch),
        feeds=[FeedPicture(feed.name, feed_text(feed), feed.done, _fed(feed, state)) for feed in state.feeds.values()],
        phases=take_phases(state),
        workers=rows(state),
        charts=take_charts(state, metrics),
        fit=_fit(state),
        more=_more(without_chart(state)),
        notices=told(state)[-NOTICES_SHOWN:],
        error=state.error,
    )


def _metrics(state: RunState) -> list[Metric]:
    """The first metrics, and how many more there are."""
    shown = [Metric(name, number(value)) for name, value in islice(state.metrics.items(), METRICS_SHOWN)]
    more = len(state.metrics) - len(shown)
    return [*shown, Metric("further metrics", f"{more:,}")] if more else shown


def _fit(state: RunState) -> str:
    if not state.earlier:
        return ""
    return f"Curves of fit {state.fit + 1} of this cell; the history of the run has those before it."


def _more(names: list[str]) -> str:
    """That there are metrics without a curve, and how to see them."""
    if not names:
        return ""
    named = ", ".join([*map(repr, names[:NAMES_SHOWN]), *(["…"] if names[NAMES_SHOWN:] else [])])
    return f"{count_of(len(names), 'more metric')} without a curve: Curves(run, metrics=[{named}])."


def _fed(feed: FeedState, state: RunState) -> str:
    if feed.released:
        return "released"
    return "fed" if feed.done else "not fed" if state.phase.ended else "feeding"


def preparing(state: RunState) -> str:
    """What is waited for before the first step."""
    if state.phase is RunPhase.QUEUED and state.ahead > 1:
        return f"number {state.ahead} of those that wait"
    return _PREPARING.get(state.phase, "")


def awaiting(state: RunState) -> str:
    """What is waited for; where that takes long, for how long it was, and is at most."""
    awaited, now = state.awaited, state.clock()
    if awaited is None or state.phase is RunPhase.QUEUED or state.phase.ended:
        return ""
    text = f"waiting for {awaited.what}"
    if now - awaited.since < SAY_SECONDS:
        return text
    left = f", at most {duration(awaited.until - now)} more" if now < awaited.until < math.inf else ""
    return f"{text} ({duration(now - awaited.since)}{left})"


def _plain(value: Any) -> Any:
    """Dataclasses as dicts, without a copy of what is plain, as ``asdict`` makes of each of thousands of numbers."""
    if is_dataclass(value):
        return {name: _plain(each) for name, each in vars(value).items()}
    if isinstance(value, list) and value and is_dataclass(value[0]):
        return [_plain(each) for each in value]
    return value


def take_phases(state: RunState) -> list[Phase]:
    """Where the time went, in order: parts that took none are left out, and a worker that others wait for is named."""
    parts = seconds_by_phase(state)
    whole, slowest = sum(parts.values()), straggler(state)
    named = {} if slowest is None else {WAITING: f"wait for worker {slowest}"}
    shown = {name: part for name, part in parts.items() if part >= 0.05}
    return [Phase(named.get(name, name), round(part / whole, 4), duration(part)) for name, part in shown.items()]


def summary(state: RunState) -> str:
    """The run in one line, as a terminal and a notebook without HTML show it."""
    head = _headline(state)
    lead = f"{head} {'in' if state.phase is RunPhase.DONE else 'after'} {duration(state.elapsed)}"
    parts = [lead if state.phase.ended else head, position(state)]
    if state.phase is RunPhase.RUNNING and (left := state.remaining):
        parts.append(f"{duration(left)} left")
    rates = [pace(state.rows_per_second), traffic(state.sent_per_epoch) if state.phase.ended else ""]
    return " · ".join(part for part in (*parts, metrics_text(state.metrics), *rates) if part)


def epoch_text(state: RunState, epoch: int) -> str:
    """One epoch of ``state.history``, the ``epoch``-th in it, in a line."""
    return f"epoch {of(state.epochs_done[epoch] + 1, state.planned)} · {metrics_text(state.history[epoch])}"


def metrics_text(metrics: dict[str, float]) -> str:
    return " · ".join(f"{name} {number(value)}" for name, value in metrics.items())


def position(state: RunState) -> str:
    """Where the run is, counted from 1 as people do: ``epoch 2 of 3 · step 40 of 120``."""
    if state.phase.ended:
        return _epochs_done(state)
    if state.returned < state.returning:
        return f"bringing back {size(state.returned)} of {size(state.returning)}"
    if state.phase is not RunPhase.RUNNING or not (state.step or state.history):
        return ""
    parts = [f"epoch {of(state.epoch + 1, state.epochs)}"]
    if state.stage == "rest":
        parts.append("fit has ended, the cell goes on")
    elif state.stage == "validate":
        parts.append("validating")
    elif state.stage == "checkpoint":
        parts.append("saving a checkpoint")
    elif state.step:
        parts.append(f"step {of(state.step, state.steps)}")
    return " · ".join(parts)


def feed_text(feed: FeedState) -> str:
    """How far a feed is: rows, size, seconds and pace."""
    if feed.streamed:
        return "streamed anew in every epoch"
    if feed.reused:
        return f"{count_of(feed.rows, 'row')} · already on the workers"
    parts = [count_of(feed.rows, "row")]
    if feed.bytes:
        parts.append(size(feed.bytes))
    if feed.seconds > 0:
        parts += [duration(feed.seconds), pace(feed.rows / feed.seconds)]
    return " · ".join(part for part in parts if part)


def _headline(state: RunState) -> str:
    if state.phase is RunPhase.STOPPED and not state.begun:
        return "Stopped before it began"
    headline = _HEADLINES[state.phase] if _trains(state) else "Ran on {workers}"
    return headline.format(workers=count_of(len(state.workers), "worker"))


def _trains(state: RunState) -> bool:
    """Whether it trains, as far as is known: one that is done tells of steps or epochs."""
    return state.phase is not RunPhase.DONE or bool(state.history or state.step)


def _fraction(state: RunState) -> float | None:
    """None where there is nothing to count against, which a bar shows as such rather than as nothing done."""
    if state.phase.ended or state.epochs:
        return round(state.fraction, 4)
    return None


def _epochs_done(state: RunState) -> str:
    """How many epochs it had: the one in which it ended is not counted."""
    if not state.history:
        return ""
    if state.planned not in (0, state.trained):
        return f"{of(state.trained, state.planned)} epochs"
    return count_of(len(state.history), "epoch")
