"""The lines of a cell around the one that matters, as errors show them."""

from __future__ import annotations

CONTEXT_LINES = 2


def mark_line(source: str, line: int) -> str:
    """The lines of ``source`` around ``line`` (from 1), that one marked; empty for line 0."""
    if not line:
        return ""
    lines = source.splitlines()
    first = max(1, line - CONTEXT_LINES)
    shown = range(first, min(len(lines), line + CONTEXT_LINES) + 1)
    return "\n".join(f"{'-->' if n == line else '   '} {n:3d} {lines[n - 1]}" for n in shown)
