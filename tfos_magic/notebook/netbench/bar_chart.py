"""Horizontal bars as inline SVG that needs no script and no style sheet, as the charts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tfos_magic.notebook.views.wording import size

WIDTH, ROW, LEFT, RIGHT = 420.0, 16.0, 64.0, 84.0
_FILL = 'fill="#1976d2" style="fill:var(--jp-brand-color1,#1976d2)"'


def draw_bars(bars: Sequence[tuple[str, float]]) -> str:
    """Bytes per second by name; a bar of full width is the largest. Empty where there is none."""
    if not bars:
        return ""
    largest = max(value for _, value in bars) or 1.0
    height = ROW * (len(bars) + 1)
    label = "Large messages between workers, bytes per second each way: " + ", ".join(
        f"{name} {size(int(value))}/s" for name, value in bars
    )
    body = "".join(_bar(place, name, value, largest) for place, (name, value) in enumerate(bars))
    title = f'<text x="0" y="{ROW - 5:g}">Large messages between workers, each way</text>'
    box = f'viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" height="{height:g}"'
    texts = f'<g fill="currentColor">{title}{body}</g>'
    return f'<svg role="img" aria-label="{escape(label)}" {box} font-size="11">{texts}</svg>'


def _bar(place: int, name: str, value: float, largest: float) -> str:
    top, width = ROW * (place + 1), (WIDTH - LEFT - RIGHT) * value / largest
    middle = top + ROW - 5
    bar = f'<rect x="{LEFT:g}" y="{top + 2:g}" width="{max(1.0, width):.1f}" height="{ROW - 5:g}" {_FILL}></rect>'
    told = f'<text x="{LEFT + width + 5:.1f}" y="{middle:g}">{size(int(value))}/s</text>'
    return f'<text x="{LEFT - 6:g}" y="{middle:g}" text-anchor="end">{escape(name)}</text>{bar}{told}'
