"""What a run looks like at one moment, in words and numbers: the part that all views share.

Wording and number formats are decided here once, so that the panel, the card and the terminal say the same.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tfos_magic.cluster.state import FeedState, RunPhase, RunState, WorkerState
from tfos_magic.notebook.views.curve import LINES, draw_curve

NOTICES_SHOWN = 6

_HEADLINES = {
    RunPhase.STARTING: "Starting on {workers}",
    RunPhase.FEEDING: "Feeding {workers}",
    RunPhase.RUNNING: "Training on {workers}",
    RunPhase.STOPPING: "Stopping {workers}",
    RunPhase.DONE: "Trained on {workers}",
    RunPhase.STOPPED: "Stopped on {workers}",
    RunPhase.FAILED: "Training failed",
}

_PREPARING = {
    RunPhase.STARTING: "waiting for the workers",
    RunPhase.FEEDING: "rows on their way to the workers",
    RunPhase.RUNNING: "before the first step",
    RunPhase.STOPPING: "until the next step that all workers share",
}


@dataclass(frozen=True)
class Metric:
    """A metric's name and its value, ready to read; ``line`` is how the curve draws it: solid, dashed or not at all."""

    name: str
    text: str
    line: str = ""


@dataclass(frozen=True)
class Feed:
    """One DataFrame: its name and, in words, how far it is."""

    name: str
    text: str
    done: bool


@dataclass(frozen=True)
class Worker:
    """One rank: where it is, its state, its share of the epoch (0 to 1) and its pace in words."""

    rank: int
    where: str
    state: str
    fraction: float
    pace: str


@dataclass(frozen=True)
class Picture:
    """A run in words. ``fraction`` is None where the end is not known; ``curve`` is SVG, empty below two epochs."""

    phase: str
    ended: bool
    headline: str
    name: str
    strategy: str
    elapsed: str
    fraction: float | None
    position: str
    metrics: list[Metric]
    pace: str
    traffic: str
    feeds: list[Feed]
    workers: list[Worker]
    notices: list[str]
    error: str
    curve: str

    def as_json(self) -> dict[str, Any]:
        """Plain lists, dicts, strings and finite numbers."""
        return asdict(self)


def take_picture(state: RunState) -> Picture:
    """Put ``state`` in words."""
    curve = draw_curve(state.history)
    lines = LINES if curve else {}
    return Picture(
        phase=state.phase.value,
        ended=state.phase.ended,
        headline=_headline(state),
        name=state.name,
        strategy=state.strategy,
        elapsed=duration(state.elapsed),
        fraction=_fraction(state),
        position=position(state) or _PREPARING.get(state.phase, ""),
        metrics=[Metric(name, number(value), lines.get(name, "")) for name, value in state.metrics.items()],
        pace=pace(state.rows_per_second),
        traffic=traffic(state.sent_per_epoch),
        feeds=[Feed(feed.name, feed_text(feed), feed.done) for feed in state.feeds.values()],
        workers=[_worker(worker) for worker in state.workers],
        notices=state.notices[-NOTICES_SHOWN:],
        error=state.error,
        curve=curve,
    )


def summary(state: RunState) -> str:
    """The run in one line, as a terminal and a notebook without HTML show it."""
    head = _headline(state)
    lead = f"{head} {'in' if state.phase is RunPhase.DONE else 'after'} {duration(state.elapsed)}"
    parts = [lead if state.phase.ended else head, position(state)]
    rates = [pace(state.rows_per_second), traffic(state.sent_per_epoch) if state.phase.ended else ""]
    return " · ".join(part for part in (*parts, metrics_text(state.metrics), *rates) if part)


def epoch_text(state: RunState, epoch: int) -> str:
    """One epoch of ``state.history`` (from 0) in a line."""
    return f"epoch {_of(epoch + 1, state.epochs)} · {metrics_text(state.history[epoch])}"


def metrics_text(metrics: dict[str, float]) -> str:
    return " · ".join(f"{name} {number(value)}" for name, value in metrics.items())


def position(state: RunState) -> str:
    """Where the run is, counted from 1 as people do: ``epoch 2 of 3 · step 40 of 120``."""
    if state.phase.ended:
        return _epochs_done(state)
    if state.phase is not RunPhase.RUNNING or not (state.step or state.history):
        return ""
    parts = [f"epoch {_of(state.epoch + 1, state.epochs)}"]
    if state.stage == "validate":
        parts.append("validating")
    elif state.step:
        parts.append(f"step {_of(state.step, state.steps)}")
    return " · ".join(parts)


def feed_text(feed: FeedState) -> str:
    """How far a feed is: rows, size, seconds and pace."""
    if feed.reused:
        return f"{_count(feed.rows, 'row')} · already on the workers"
    parts = [_count(feed.rows, "row")]
    if feed.bytes:
        parts.append(size(feed.bytes))
    if feed.seconds > 0:
        parts += [duration(feed.seconds), pace(feed.rows / feed.seconds)]
    return " · ".join(part for part in parts if part)


def number(value: float) -> str:
    """Four significant digits, without noise: ``0.1234``, ``12.35``, ``3e-05``, ``nan``."""
    return f"{value:.4g}"


def traffic(bytes_per_epoch: float) -> str:
    """What the workers sent each other in an epoch; empty when nothing."""
    return f"{size(int(bytes_per_epoch))} sent per epoch" if bytes_per_epoch >= 1 else ""


def pace(rows_per_second: float) -> str:
    if not math.isfinite(rows_per_second) or rows_per_second <= 0:
        return ""
    digits = 0 if rows_per_second >= 10 else 1
    return f"{rows_per_second:,.{digits}f} rows/s"


def duration(seconds: float) -> str:
    """``0.4 s`` under ten seconds, ``42 s`` under a minute, ``3:05``, ``1:02:03``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def size(count: int) -> str:
    """Bytes in decimal units: ``812 B``, ``4.1 MB``."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def _headline(state: RunState) -> str:
    return _HEADLINES[state.phase].format(workers=_count(len(state.workers), "worker"))


def _fraction(state: RunState) -> float | None:
    """None where there is nothing to count against, which a bar shows as such rather than as nothing done."""
    if state.phase.ended or state.epochs:
        return round(state.fraction, 4)
    return None


def _worker(worker: WorkerState) -> Worker:
    place = f"{worker.host} · pid {worker.pid}" if worker.pid else worker.host
    where = " · ".join(part for part in (place, worker.device) if part)
    return Worker(worker.rank, where, worker.state, _share(worker), pace(worker.rows_per_second))


def _share(worker: WorkerState) -> float:
    if worker.state == "done":
        return 1.0
    return round(min(1.0, worker.step / worker.steps), 4) if worker.steps else 0.0


def _epochs_done(state: RunState) -> str:
    done = len(state.history)
    if not done:
        return ""
    return _count(done, "epoch") if done == state.epochs else f"epoch {_of(done, state.epochs)}"


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" if whole else f"{part:,}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
