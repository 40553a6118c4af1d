"""Files of one format as a row of units, each of which a process can read by itself."""

from __future__ import annotations

from tfos_magic.files.sources import FORMATS, FileSource, Piece, Unit, open_source

__all__ = ["FORMATS", "FileSource", "Piece", "Unit", "open_source"]
