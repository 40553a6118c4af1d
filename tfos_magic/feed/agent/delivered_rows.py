"""Which rows of a partition a trainer has had, by a sample: what a task that is tried again is compared with."""

from __future__ import annotations

import pyarrow as pa

from tfos_magic.columns.digest import digest_of

SAMPLE_BYTES = 4 << 20
SAMPLE_COLUMNS = 8


class DeliveredRows:
    """A row at the beginning of a partition's share, and one after each ``SAMPLE_BYTES`` of it, in some columns.

    Places are rows of the share, from 0.
    """

    def __init__(self) -> None:
        self._words: dict[int, int] = {}
        self._next_bytes = 0

    def add(self, place: int, batch: pa.RecordBatch) -> None:
        """The trainer gets ``batch``, which begins at ``place``."""
        if self._next_bytes <= 0:
            self._words[place] = _word(batch, 0)
            self._next_bytes = SAMPLE_BYTES
        self._next_bytes -= batch.nbytes

    def has(self, place: int, batch: pa.RecordBatch) -> bool:
        """Whether ``batch``, which begins at ``place``, has the rows that were delivered, as the sample tells."""
        within = range(place, place + batch.num_rows)
        return all(_word(batch, at - place) == word for at, word in self._words.items() if at in within)


def _word(batch: pa.RecordBatch, row: int) -> int:
    columns = range(0, batch.num_columns, -(-batch.num_columns // SAMPLE_COLUMNS))
    return digest_of(batch.select([*columns]).slice(row, 1)).content
