"""What the page gets: one ES module and one style sheet for all parts, and the loader that each part brings along."""

from __future__ import annotations

from pathlib import Path

_STATIC = Path(__file__).parent / "static"
_FILES = (
    "nodes",
    "progress",
    "curves",
    "workers",
    "log",
    "compare",
    "cluster",
    "sweep",
    "parts",
)  # as they use each other

MODULE = "\n".join((_STATIC / f"{name}.js").read_text(encoding="utf-8") for name in _FILES)
LOADER = (_STATIC / "loader.js").read_text(encoding="utf-8")
STYLE = (_STATIC / "parts.css").read_text(encoding="utf-8")
