"""The curves of a run as numbers: the panel draws them live, the card as static SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tfos_magic.cluster.runs.state import RunState

POINTS = 64
METRICS = 6


@dataclass(frozen=True)
class ChartLine:
    """One curve by ascending ``xs``; ``style`` is ``solid`` (training), ``dashed`` (validation) or ``faint`` (running
    values within epochs). A y of None is a gap."""

    name: str
    style: str
    xs: list[float]
    ys: list[float | None]


@dataclass(frozen=True)
class Chart:
    """Curves that share their axes; ``x`` says what x counts: ``epoch`` (epochs trained) or ``seconds``.

    One that is not ``usual`` is for those alone who name its metric.
    """

    name: str
    x: str
    lines: list[ChartLine]
    usual: bool = True


def take_charts(state: RunState, wanted: Iterable[str] = ()) -> list[Chart]:
    """Loss first, then every metric with its validation, then rows per second; those without two points are left out.

    Of more than ``METRICS`` those that are ``wanted`` have their own all the same, which are not usual. However long
    the run, a line has at most about ``POINTS`` points.
    """
    charts = [_metric(state, name) for name in _names(state)[:METRICS]]
    charts += [replace(_metric(state, name), usual=False) for name in without_chart(state) if name in set(wanted)]
    pace = Chart("rows/s", "seconds", [_line("rows/s", "solid", state.pace.points)])
    return [chart for chart in (*charts, pace) if sum(len(line.xs) for line in chart.lines) > 1]


def without_chart(state: RunState) -> list[str]:
    """The metrics beyond ``METRICS``, which have a chart only where they are wanted."""
    return _names(state)[METRICS:]


def _names(state: RunState) -> list[str]:
    last = state.history[-1] if state.history else {}
    return list(dict.fromkeys(name.removeprefix("val_") for name in ("loss", *state.metrics, *last)))


def _metric(state: RunState, name: str) -> Chart:
    running = state.traces[name].points if name in state.traces else []
    lines = [
        _line(name, "faint", running),
        _line(name, "solid", _by_epoch(state, name)),
        _line(f"val_{name}", "dashed", _by_epoch(state, f"val_{name}")),
    ]
    return Chart(name, "epoch", [line for line in lines if line.xs])


def _line(name: str, style: str, points: list[tuple[float, float]]) -> ChartLine:
    return ChartLine(name, style, [_short(x) for x, _ in points], [_finite(y) for _, y in points])


def _by_epoch(state: RunState, name: str) -> list[tuple[float, float]]:
    """At most about ``POINTS`` points, the last one always: more cannot be seen at this size.

    Of each of so many stretches of epochs it is the first that has the metric, for not every epoch is validated.
    """
    count = len(state.history)
    each = -(-count // POINTS) or 1
    found: list[int] = []
    for begin in range(0, count, each):
        stretch = range(begin, min(begin + each, count))
        found += next(([epoch] for epoch in stretch if name in state.history[epoch]), [])
    if found:
        found += next(([e] for e in range(count - 1, found[-1], -1) if name in state.history[e]), [])
    return [(state.epochs_done[epoch] + 1.0, state.history[epoch][name]) for epoch in found]


def _finite(value: float) -> float | None:
    return _short(value) if math.isfinite(value) else None


def _short(value: float) -> float:
    """Five significant digits: more cannot be seen, and all are sent."""
    return float(f"{value:.5g}")
