"""The curves of a run as numbers: the panel draws them live, the card as static SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tfos_magic.cluster.runs.state import RunState

POINTS = 100
METRICS = 6


@dataclass(frozen=True)
class Line:
    """One curve by ascending ``xs``; ``style`` is ``solid`` (training), ``dashed`` (validation) or ``faint`` (running
    values within epochs). A y of None is a gap."""

    name: str
    style: str
    xs: list[float]
    ys: list[float | None]


@dataclass(frozen=True)
class Chart:
    """Curves that share their axes; ``x`` says what x counts: ``epoch`` (epochs trained) or ``seconds``."""

    name: str
    x: str
    lines: list[Line]


def take_charts(state: RunState, wanted: Iterable[str] = ()) -> list[Chart]:
    """Loss first, then every metric with its validation, then rows per second; those without two points are left out.

    Of more than ``METRICS`` those that are ``wanted`` have their own all the same. However long the run, a line has at
    most about ``POINTS`` points.
    """
    last = state.history[-1] if state.history else {}
    names = dict.fromkeys(name.removeprefix("val_") for name in ("loss", *state.metrics, *last))
    shown = [*list(names)[:METRICS], *(name for name in list(names)[METRICS:] if name in set(wanted))]
    charts = [_metric(state, name) for name in shown]
    pace = Chart("rows/s", "seconds", [_line("rows/s", "solid", state.pace.points)])
    return [chart for chart in (*charts, pace) if sum(len(line.xs) for line in chart.lines) > 1]


def _metric(state: RunState, name: str) -> Chart:
    epochs = list(zip(state.epochs_done, state.history, strict=True))
    trained = [(done + 1.0, metrics[name]) for done, metrics in epochs if name in metrics]
    validated = [(done + 1.0, metrics[f"val_{name}"]) for done, metrics in epochs if f"val_{name}" in metrics]
    running = state.traces[name].points if name in state.traces else []
    lines = [
        _line(name, "faint", running),
        _line(name, "solid", _thin(trained)),
        _line(f"val_{name}", "dashed", _thin(validated)),
    ]
    return Chart(name, "epoch", [line for line in lines if line.xs])


def _line(name: str, style: str, points: list[tuple[float, float]]) -> Line:
    return Line(name, style, [_short(x) for x, _ in points], [_finite(y) for _, y in points])


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep at most about ``POINTS`` points, the last one always: more cannot be seen at this size."""
    every = -(-len(points) // POINTS) or 1
    return points[::every] + ([points[-1]] if (len(points) - 1) % every else [])


def _finite(value: float) -> float | None:
    return _short(value) if math.isfinite(value) else None


def _short(value: float) -> float:
    """Five significant digits: more cannot be seen, and all are sent."""
    return float(f"{value:.5g}")
