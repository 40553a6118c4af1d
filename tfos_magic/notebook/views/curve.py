"""The loss over the epochs as a small inline SVG."""

from __future__ import annotations

import math

WIDTH, HEIGHT, MARGIN = 240.0, 64.0, 4.0
POINTS = 200

LINES = {"loss": "solid", "val_loss": "dashed"}
COLOURS = {"solid": "var(--jp-brand-color1,#1976d2)", "dashed": "var(--jp-warn-color1,#ef6c00)"}
_DASHES = {"solid": "", "dashed": ";stroke-dasharray:4 3"}


def draw_curve(history: list[dict[str, float]]) -> str:
    """Draw ``loss`` and ``val_loss`` by epoch; empty below two finite values. Values that are not finite are gaps."""
    curves = {name: _thin([(i, h[name]) for i, h in enumerate(history) if name in h]) for name in LINES}
    finite = [value for points in curves.values() for _, value in points if math.isfinite(value)]
    if len(history) < 2 or len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    paths = "".join(
        f'<path d="{path}" fill="none" style="stroke:{COLOURS[line]};stroke-width:1.75{_DASHES[line]}"></path>'
        for (name, line), points in zip(LINES.items(), curves.values(), strict=True)
        if (path := _path(points, len(history) - 1, low, high))
    )
    label = f"Loss by epoch, from {history[0].get('loss', math.nan):.4g} to {history[-1].get('loss', math.nan):.4g}"
    box = f"0 0 {WIDTH:g} {HEIGHT:g}"
    return f'<svg role="img" aria-label="{label}" viewBox="{box}" width="{WIDTH:g}" height="{HEIGHT:g}">{paths}</svg>'


def _thin(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Keep at most about ``POINTS`` points, the last one always: more cannot be seen at this size."""
    every = -(-len(points) // POINTS)
    return points[:: every or 1] + ([points[-1]] if every > 1 and (len(points) - 1) % every else [])


def _path(points: list[tuple[int, float]], last: int, low: float, high: float) -> str:
    """Lines through the finite points, lifted over the gaps."""
    steps, command = [], "M"
    for epoch, value in points:
        if not math.isfinite(value):
            command = "M"
            continue
        x = MARGIN + (WIDTH - 2 * MARGIN) * epoch / last
        y = MARGIN + (HEIGHT - 2 * MARGIN) * ((high - value) / (high - low) if high > low else 0.5)
        steps.append(f"{command}{x:.1f} {y:.1f}")
        command = "L"
    return "".join(steps)
