"""A chart as inline SVG that needs no script and no style sheet.

Colours are presentation attributes, with the page's own as styles over them: where styles are stripped, lines stay.
"""

from __future__ import annotations

from html import escape

from tfos_magic.notebook.views.charts import Chart, ChartLine
from tfos_magic.notebook.views.wording import duration, number

WIDTH, HEIGHT = 224.0, 92.0
DIGITS = 7
LEFT, RIGHT, TOP, BOTTOM = 48.0, 6.0, 6.0, 16.0

_TRAINING = 'stroke="#1976d2" style="stroke:var(--jp-brand-color1,#1976d2)"'
_VALIDATION = 'stroke="#e65100" style="stroke:var(--jp-warn-color1,#e65100)"'
_STROKES = {
    "solid": f'{_TRAINING} stroke-width="1.75"',
    "faint": f'{_TRAINING} stroke-width="1.25" stroke-opacity="0.4"',
    "dashed": f'{_VALIDATION} stroke-width="1.75" stroke-dasharray="4 3"',
}


def draw_chart(chart: Chart) -> str:
    """Draw ``chart``; empty where fewer than two of its values are finite. Values that are not finite are gaps."""
    values = [y for line in chart.lines for y in line.ys if y is not None]
    if len(values) < 2:
        return ""
    frame = _Frame(chart, min(values), max(values))
    body = frame.axes() + "".join(frame.path(line) for line in chart.lines)
    box = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" height="{HEIGHT:g}"'
    label = escape(_label(chart))
    # Where drawings are stripped and their texts are left, the words say what the numbers are.
    words = f"<desc> {label}. Its axes end at </desc>"
    return f'<svg role="img" aria-label="{label}" {box} fill="none" font-size="10">{words}{body}</svg>'


class _Frame:
    """Where values lie in the drawing."""

    def __init__(self, chart: Chart, low: float, high: float) -> None:
        xs = [x for line in chart.lines for x in line.xs]
        self._chart = chart
        self._low, self._high = low, high
        self._first = min(xs) if chart.x == "seconds" else 0.0
        self._last = max(xs)

    def axes(self) -> str:
        """The highest and lowest value with a line each, and where x begins and ends."""
        unit = duration if self._chart.x == "seconds" else number
        bottom = HEIGHT - BOTTOM
        rules = "".join(
            f'<path d="M{LEFT:g} {y:g}H{WIDTH - RIGHT:g}" stroke="currentColor" stroke-opacity="0.15"></path>'
            for y in (TOP, bottom)
        )
        ends = ((TOP + 4, self._high), (bottom, self._low))
        marks = [(LEFT - 4, at, "end", _short(value)) for at, value in ends]
        marks += [(LEFT, HEIGHT - 4, "start", unit(self._first)), (WIDTH - RIGHT, HEIGHT - 4, "end", unit(self._last))]
        texts = (f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in marks)
        return f'{rules}<g fill="currentColor" fill-opacity="0.75">{" ".join(texts)} </g>'

    def path(self, line: ChartLine) -> str:
        """Lines through the finite points, lifted over the gaps; a point alone is a dot."""
        steps = []
        for x, before, y, after in zip(line.xs, [None, *line.ys], line.ys, [*line.ys[1:], None], strict=False):
            if y is not None:
                dot = "h0.1" if before is None and after is None else ""
                steps.append(f"{'M' if before is None else 'L'}{self._x(x):.1f} {self._y(y):.1f}{dot}")
        return f'<path d="{"".join(steps)}" stroke-linecap="round" {_STROKES[line.style]}></path>'

    def _x(self, x: float) -> float:
        span = self._last - self._first
        return LEFT + (WIDTH - LEFT - RIGHT) * ((x - self._first) / span if span else 1.0)

    def _y(self, y: float) -> float:
        span = self._high - self._low
        return TOP + (HEIGHT - TOP - BOTTOM) * ((self._high - y) / span if span else 0.5)


def _short(value: float) -> str:
    """Three digits, with a power of ten where they would not fit beside the axis: ``4.92e-4``."""
    text = number(float(f"{value:.3g}"))
    digits, _, power = f"{value:.2e}".partition("e")
    return text if len(text) <= DIGITS else f"{digits}e{int(power)}"


def _label(chart: Chart) -> str:
    """The chart in words: each line from its first to its last finite value."""
    parts = []
    for line in chart.lines:
        finite = [y for y in line.ys if y is not None]
        if finite and (line.style != "faint" or len(chart.lines) == 1):
            parts.append(f"{line.name} from {number(finite[0])} to {number(finite[-1])}")
    return f"{chart.name} by {'epoch' if chart.x == 'epoch' else 'time'}: " + ", ".join(parts)
