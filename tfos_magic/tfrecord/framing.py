"""The framing of TFRecord files: length, CRC of the length, data, CRC of the data.

The format, and the mask over the checksums, are those of TensorFlow's ``tensorflow/core/lib/io/record_writer.h``. The
checksum is CRC32C, as google-crc32c computes it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

HEADER = 12
"""Bytes before a record: its length (8) and the length's checksum (4)."""
FOOTER = 4
LONGEST = (1 << 31) - 1
"""A protobuf message has at most this many bytes."""

Offsets = npt.NDArray[np.signedinteger]
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True)
class RecordSplit:
    """The records of a block: where their data start and end, and what comes after them.

    ``rest`` is the position of the first byte that belongs to no whole record, ``needed`` how many bytes the record
    there takes (as far as can be told), and ``damage`` says what is wrong with it, or is empty.
    """

    starts: Offsets
    ends: Offsets
    rest: int
    needed: int
    damage: str = ""


def split(block: bytes, end: int) -> RecordSplit:
    """Find the records in ``block[:end]``, with both checksums checked."""
    unpack = _LENGTH.unpack_from
    heads, at, needed = [], 0, HEADER
    while at + HEADER <= end:
        (length,) = unpack(block, at)
        needed = HEADER + length + FOOTER
        if at + needed > end:
            break
        heads.append(at)
        at += needed
        needed = HEADER
    starts = np.asarray(heads, np.int64) + HEADER
    ends = np.append(starts[1:] - HEADER, at)[: len(starts)] - FOOTER
    starts, ends, damage = _checked(block, starts, ends)
    rest = int(ends[-1]) + FOOTER if len(ends) else 0
    if damage:
        return RecordSplit(starts, ends, rest, HEADER, damage)
    if rest + HEADER <= end:  # the length of a record that is not whole is believed only when its checksum is right
        damage = _damaged_length(block, rest)
    return RecordSplit(starts, ends, rest, needed, damage)


def frame(records: pa.Array) -> pa.Buffer:
    """Give the bytes of a file for a binary array of records without nulls."""
    offsets = np.frombuffer(records.buffers()[1], np.int32, len(records) + 1, records.offset * 4)
    content = records.buffers()[2].to_pybytes() if len(records) and offsets[-1] else b""
    lengths = np.diff(offsets).astype("<u8")
    head = np.empty(len(records), [("length", "<u8"), ("crc", "<u4")])
    head["length"] = lengths
    head["crc"] = _mask(_length_checksums(lengths))
    foot = _mask(_checksums(content, offsets[:-1], offsets[1:])).astype("<u4")
    framed = pc.binary_join_element_wise(_fixed(head, HEADER), records, _fixed(foot, FOOTER), b"")
    return framed.buffers()[2].slice(0, int(lengths.sum()) + (HEADER + FOOTER) * len(records))


def masked(data: bytes) -> int:
    """The masked CRC32C of ``data``: rotated by 15 bits and moved, so that checksums of checksums stay good."""
    return int(_mask(np.array([_crc32c()(data)], np.uint32))[0])


def _checked(block: bytes, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, str]:
    """Keep what comes before the first wrong checksum, and say which that is."""
    heads = np.frombuffer(block, np.uint8)
    lengths = (ends - starts).astype("<u8")
    wrong_lengths = _mask(_length_checksums(lengths)) != _numbers(heads, starts - FOOTER)
    sound = int(np.argmax(wrong_lengths)) if wrong_lengths.any() else len(starts)
    damage = "the checksum of its length is wrong" if sound < len(starts) else ""
    starts, ends = starts[:sound], ends[:sound]
    wrong = _mask(_checksums(block, starts, ends)) != _numbers(heads, ends)
    if wrong.any():
        sound = int(np.argmax(wrong))
        return starts[:sound], ends[:sound], "the checksum of its data is wrong"
    return starts, ends, damage


def _damaged_length(block: bytes, at: int) -> str:
    if masked(block[at : at + 8]) != _CHECKSUM.unpack_from(block, at + 8)[0]:
        return "the checksum of its length is wrong"
    length = _LENGTH.unpack_from(block, at)[0]
    return f"it says that it has {length} bytes, and {LONGEST} is the most" if length > LONGEST else ""


def _length_checksums(lengths: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Most files have few lengths."""
    distinct, places = np.unique(lengths, return_inverse=True)
    crc = _crc32c()
    return np.array([crc(_LENGTH.pack(length)) for length in distinct.tolist()], np.uint32)[places]


def _checksums(block: bytes, starts: Offsets, ends: Offsets) -> npt.NDArray[np.uint32]:
    """One call for each record: under a tenth of a microsecond, and the checksum itself is the processor's own."""
    crc = _crc32c()
    return np.array([crc(block[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)], np.uint32)


def _mask(crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def _numbers(data: npt.NDArray[np.uint8], at: Offsets) -> npt.NDArray[np.uint32]:
    """The little-endian 32-bit numbers at these places."""
    return np.ascontiguousarray(data[at[:, None] + np.arange(4)]).view("<u4").reshape(-1)


def _fixed(rows: npt.NDArray[np.void] | npt.NDArray[np.uint32], width: int) -> pa.Array:
    """Rows of one width as a binary array."""
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * width
    return pa.BinaryArray.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def _crc32c():  # type: ignore[no-untyped-def]
    import google_crc32c  # here, because a kernel that reads no TFRecord need not have it

    return google_crc32c.value
