"""What is known of a DataFrame that was fed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfos_magic.columns.columns import Column, decode_schema, field_column
from tfos_magic.columns.digest import RowsDigest, joined
from tfos_magic.errors import FeedError
from tfos_magic.feed.driver.feed_job import FeedReport


@dataclass(frozen=True)
class SpooledFeed:
    """A DataFrame that lies in the spools; rows and bytes over all ranks, seconds of the feed job.

    ``columns`` are those that the cell gets, their shapes known. One for which there was no room has a ``schema`` and
    nothing in the spools: it is streamed to every run. ``digests`` are those of the partitions' rows, ``missing``
    the ranks whose share went with their agents. ``files`` is the mark of the files that were read,
    ``recomputed`` how the rows differ from those that were there before agents were lost, ``parallelism`` how many
    partitions they were planned for.
    """

    feed_id: str
    rows: int
    bytes: int
    seconds: float
    columns: tuple[Column, ...] = ()
    schema: str = ""
    digests: tuple[RowsDigest, ...] = ()
    missing: frozenset[int] = frozenset()
    files: str = ""
    recomputed: str = ""
    parallelism: int = 0

    @property
    def streamed(self) -> bool:
        return bool(self.schema)

    @property
    def mark(self) -> list[int]:
        """What tells its rows from others, as JSON has it: see :class:`~tfos_magic.checkpoints.setting.Rows`; nothing
        where that is not known."""
        if not self.rows:
            return []
        rows, sizes = joined(self.digests), [partition.rows for partition in self.digests if partition.rows]
        return [self.rows, _crc(self.columns), rows.content, rows.order, _crc(sizes), self.parallelism]


def unlike(now: Sequence[RowsDigest], then: Sequence[RowsDigest]) -> str:
    """How the rows of partitions differ from those they had before, in words; nothing where they do not."""
    if now == then:
        return ""
    rows, before = joined(now), joined(then)
    if rows.rows != before.rows:
        return f"{rows.rows:,} rows instead of {before.rows:,}"
    if rows.content != before.content:
        return "different values"
    return (
        "the same rows in a different order" if rows.order != before.order else "the same rows in different partitions"
    )


def _crc(value: object) -> int:
    return zlib.crc32(repr(value).encode())


def columns_of(schema: str) -> tuple[Column, ...]:
    """The columns of a settled schema, base64 of its IPC form."""
    return tuple(map(field_column, decode_schema(schema)))


def whole(feed_id: str, report: FeedReport, attached: list[Any], copies: int) -> SpooledFeed:
    """The feed that all workers hold their shares of, so many times."""
    rows, rest = divmod(sum(answer.rows for answer in attached), copies)
    if rows != report.rows or rest:
        raise FeedError(f"Spark sent {report.rows} rows and the workers hold {rows}: run the cell again")
    size = sum(answer.bytes for answer in attached)
    return SpooledFeed(feed_id, rows, size, report.seconds, columns_of(report.schema), digests=report.digests)
