"""The lines of a cell around those that matter, as errors show them."""

from __future__ import annotations

from collections.abc import Collection

CONTEXT_LINES = 2


def mark_lines(source: str, marked: Collection[int]) -> str:
    """The lines of ``source`` around those ``marked`` (from 1); empty where none is."""
    lines = source.splitlines()
    near = {n for line in marked if line for n in range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1)}
    shown = sorted(n for n in near if 0 < n <= len(lines))
    texts = [f"{'-->' if n in marked else '   '} {n:3d} {lines[n - 1]}" for n in shown]
    gaps = [n > 1 and n - 1 not in near and n != shown[0] for n in shown]
    return "\n".join(f"    ...\n{text}" if gap else text for text, gap in zip(texts, gaps, strict=True))
