"""The rows of a spooled feed, read where they lie. Runs of rows are Arrow record batches until they become tensors."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfos_magic.columns.columns import decode_schema
from tfos_magic.errors import FeedError
from tfos_magic.transport.messages import SpoolHandle

BLOCKS_KEPT = 1024


class SpooledRows:
    """The rows of a committed feed on one rank, mapped into memory; addressed by their index in this rank's order.

    ``starts`` is where each block begins among these rows, and how many there are: int64, shape ``(blocks + 1,)``;
    ``memory`` is the buffer that all blocks lie in; ``block`` gives one of them by its index.
    """

    def __init__(self, handle: SpoolHandle) -> None:
        self.schema = decode_schema(handle.schema)
        self.memory = pa.py_buffer(_map_file(handle.path, bytes.fromhex(handle.mark)))
        blocks = np.array(handle.blocks, dtype=np.int64).reshape(-1, 4)
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(blocks[:, 3])])
        # An open block takes kilobytes, and a large spool has a hundred thousand of them.
        self.block = lru_cache(BLOCKS_KEPT)(_BlockReader(self.memory, blocks, self.schema))

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)

    def read(self, names: Sequence[str], start: int, stop: int) -> pa.RecordBatch:
        """Give rows ``[start, stop)`` of the named columns; a view of the file where they lie in one block."""
        if stop <= start:
            return pa.RecordBatch.from_pylist([], schema=pa.schema([self.schema.field(name) for name in names]))
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        last = int(np.searchsorted(self.starts, stop, side="left"))
        parts = []
        for index in range(first, last):
            at = int(self.starts[index])
            begin = max(0, start - at)
            parts.append(self.block(index).select(list(names)).slice(begin, stop - at - begin))
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


@dataclass(frozen=True, eq=False)
class _BlockReader:
    """Gives a block as a view of the file; it does not know the cache before it, so that neither keeps the other."""

    memory: pa.Buffer
    blocks: npt.NDArray[np.int64]
    schema: pa.Schema

    def __call__(self, index: int) -> pa.RecordBatch:
        offset, size, first, rows = self.blocks[index].tolist()
        return pa.ipc.read_record_batch(self.memory.slice(offset, size), self.schema).slice(first, rows)


def _map_file(path: str, mark: bytes) -> mmap.mmap:
    """Map the spool's file for reading, after a look that the path still leads to it."""
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise FeedError(f"the rows of this feed are gone ({error}): run the cell again to feed them again") from error
    if mapped[: len(mark)] != mark:
        raise FeedError("the rows of this feed were released: run the cell again to feed them again")
    return mapped
