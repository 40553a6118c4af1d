"""What is known of a DataFrame that was fed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from tfos_magic.columns.columns import Column, decode_schema, field_column


@dataclass(frozen=True)
class SpooledFeed:
    """A DataFrame that lies in the spools; rows and bytes over all ranks, seconds of the feed job.

    ``columns`` are those that the cell gets, their shapes known. One for which there was no room has a ``schema`` and
    nothing in the spools: it is streamed to every run. ``sizes`` are the partitions and their rows, ``missing`` the
    ranks whose share went with their agents. ``files`` is the mark of the files that were read, ``digest`` that of the
    rows.
    """

    feed_id: str
    rows: int
    bytes: int
    seconds: float
    columns: tuple[Column, ...] = ()
    schema: str = ""
    sizes: tuple[tuple[int, int], ...] = ()
    missing: frozenset[int] = frozenset()
    files: str = ""
    digest: int = 0

    @property
    def streamed(self) -> bool:
        return bool(self.schema)

    @property
    def mark(self) -> list[int]:
        """What tells its rows from others, as JSON has it: their number, and digests of columns and rows; nothing
        where that is not known."""
        return [] if not self.rows else [self.rows, zlib.crc32(repr(self.columns).encode()), self.digest]


def columns_of(schema: str) -> tuple[Column, ...]:
    """The columns of a settled schema, base64 of its IPC form."""
    return tuple(map(field_column, decode_schema(schema)))
