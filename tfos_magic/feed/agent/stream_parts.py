"""What a stream is made of: runs of rows, in memory or on disk, and the partitions that they belong to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa

from tfos_magic.errors import FeedError
from tfos_magic.feed.agent.append_only_file import AppendOnlyFile


class Superseded(FeedError):
    """A task sends rows of a partition that a later attempt sends already."""


@dataclass(frozen=True)
class NextRows:
    """What the trainer is given next: rows of its share, or a partition's ``tail`` and how many ``rows`` it had."""

    batch: pa.RecordBatch
    rows: int | None = None


@dataclass(frozen=True)
class RowRun:
    """A run of rows: in memory, or ``size`` bytes at ``offset`` of the part's file."""

    rows: int
    size: int
    batch: pa.RecordBatch | None = None
    offset: int = 0


@dataclass(eq=False)
class StreamPart:
    """A partition as its latest attempt sends it. ``skip`` rows of it were delivered from an earlier one, ``taken``
    were taken off it so far."""

    attempt: int
    skip: int = 0
    chunks: deque[RowRun] = field(default_factory=deque)
    file: AppendOnlyFile | None = None
    received: int = 0
    taken: int = 0
    end: NextRows | None = None

    def forget(self) -> None:
        """Give the rows up."""
        self.chunks.clear()
        if self.file is not None:
            self.file.close()
