"""Protobuf's wire format for many messages at once: a step reads one field of every message.

The format is that of https://protobuf.dev/programming-guides/encoding. Messages are byte ranges of one block, so
nothing is copied until values are gathered. Every block ends with ``PADDING`` zero bytes that belong to no message: a
read past a message's end stays inside the block, and is found out by its position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PADDING = 32
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10

Offsets = npt.NDArray[np.int64]
Block = npt.NDArray[np.uint8]


class Malformed(ValueError):
    """Bytes that are no protobuf message."""


@dataclass(frozen=True)
class Fields:
    """Fields of many messages, in the order of the messages and of the fields in each: five arrays of one length.

    ``message`` is the index of the message, ``start`` and ``end`` are where the field's content lies in the block.
    """

    message: Offsets
    number: Offsets
    wire: Offsets
    start: Offsets
    end: Offsets

    def only(self, number: int, *wires: int) -> Fields:
        """The fields of this number. Raises :class:`Malformed` when one is of another wire type than ``wires``."""
        chosen = self._take(self.number == number)
        fits = np.zeros(8, np.bool_)
        fits[list(wires)] = True
        if not fits[chosen.wire].all():
            raise Malformed(f"field {number} has an unexpected wire type")
        return chosen

    def last(self, messages: int) -> Offsets:
        """For each message the index of its last field, or -1: where one may be there, the last one counts."""
        last_fields = np.full(messages, -1, np.int64)
        last_fields[self.message] = np.arange(len(self.message))
        return last_fields

    def _take(self, which: npt.NDArray[np.bool_]) -> Fields:
        if which.all():
            return self
        return Fields(self.message[which], self.number[which], self.wire[which], self.start[which], self.end[which])


def walk(block: Block, starts: Offsets, ends: Offsets) -> Fields:
    """Read the fields of the messages that lie at ``starts`` to ``ends``; their contents are not read."""
    steps: list[tuple[Offsets, ...]] = []
    message = np.flatnonzero(starts < ends)
    at, stop = starts[message], ends[message]
    while len(message):
        number, wire, begin, over = _fields_at(block, at)
        if (over > stop).any() or (over < begin).any():
            raise Malformed("a field reaches over the end of its message")
        steps.append((message, number, wire, begin, over))
        more = over < stop
        if not more.all():
            message, over, stop = message[more], over[more], stop[more]
        at = over
    return _in_order(steps)


def _in_order(steps: list[tuple[Offsets, ...]]) -> Fields:
    """Put the fields of all steps in the order of their messages."""
    if not steps:
        return Fields(*[np.zeros(0, np.int64)] * 5)
    if len(steps) == 1:
        return Fields(*steps[0])
    columns = list(zip(*steps, strict=True))
    if len(steps[-1][0]) == len(steps[0][0]):  # all messages have as many fields
        return Fields(*[np.column_stack(column).reshape(-1) for column in columns])
    whole = [np.concatenate(column) for column in columns]
    order = np.argsort(whole[0], kind="stable")
    return Fields(*[column[order] for column in whole])


def walk_pairs(block: Block, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, Offsets, Offsets] | None:
    """Where the fields 1 and 2 of messages lie that have just these, in this order, as entries of maps mostly do.

    None when a message is different, or longer than its short form: :func:`walk` reads these, and judges them.
    """
    if not len(starts) or (ends - starts < 4).any():
        return None
    first = _same_short_fields(block, starts)
    if first is None or first[0][0] != 1 or (first[3] > ends - 2).any():
        return None
    second = _fields_at(block, first[3])
    if (second[0] != 2).any() or (second[1] != LENGTH).any() or (second[3] != ends).any():
        return None
    return first[2], first[3], second[2], second[3]


_Step = tuple[Offsets, Offsets, Offsets, Offsets]


def _same_short_fields(block: Block, at: Offsets) -> _Step | None:
    """Read a field of each message where all have the same tag and contents below 128 bytes, as is common."""
    tag = block[at]
    first = int(tag[0])
    if first & 0x87 != LENGTH or first < 8 or (tag != first).any():
        return None
    begin = at + 1
    size = block[begin]
    if size.max() >= 0x80:
        return None
    begin += 1
    number, wire = np.broadcast_to(np.int64(first >> 3), at.shape), np.broadcast_to(np.int64(LENGTH), at.shape)
    return number, wire, begin, begin + size


def _fields_at(block: Block, at: Offsets) -> _Step:
    return _same_short_fields(block, at) or _any_fields(block, at)


def _any_fields(block: Block, at: Offsets) -> _Step:
    tag, begin = read_varints(block, at)
    number, wire = tag >> 3, tag & 7
    if not number.all():
        raise Malformed("a field has the number 0")
    size, begin = _sizes(block, begin, wire)
    return number, wire, begin, begin + size


def _sizes(block: Block, at: Offsets, wire: Offsets) -> tuple[Offsets, Offsets]:
    """How long each field's content is, and where it begins."""
    if (wire == LENGTH).all():
        return read_varints(block, np.minimum(at, len(block) - _LONGEST_VARINT - 1))
    if not np.isin(wire, (VARINT, FIXED64, LENGTH, FIXED32)).all():
        raise Malformed("a field has an unknown wire type")
    at = np.minimum(at, len(block) - _LONGEST_VARINT - 1)
    value, after = read_varints(block, at, np.isin(wire, (LENGTH, VARINT)))
    size = np.select([wire == LENGTH, wire == VARINT, wire == FIXED64], [value, after - at, np.int64(8)], 4)
    return size, np.where(wire == LENGTH, after, at)


def read_varints(
    block: Block, at: Offsets, where: npt.NDArray[np.bool_] | None = None
) -> tuple[npt.NDArray[np.int64], Offsets]:
    """Read a varint at each place (of ``where``): the values, and the places after them."""
    byte = block[at]
    value, after = (byte & 0x7F).astype(np.int64), at + 1
    longer = byte >= 0x80
    more = np.flatnonzero(longer if where is None else longer & where)
    shift = 7
    while len(more):
        if shift >= 7 * _LONGEST_VARINT:
            raise Malformed("a number has more than ten bytes")
        byte = block[after[more]]
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        after[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    return value, after


def gather(block: Block, starts: Offsets, ends: Offsets) -> pa.Array:
    """Copy byte ranges, which rise, into one binary array.

    The ranges and the gaps between them are an Arrow array over the block itself; ``take`` leaves the gaps out.
    """
    if not len(starts):
        return pa.array([], pa.binary())
    offsets = np.column_stack([starts, ends]).astype(np.int32).reshape(-1)
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(block)]
    )
    return whole.take(pa.array(np.arange(0, len(offsets), 2)))


def content(array: pa.Array) -> Block:
    """All bytes of a binary array that :func:`gather` gave."""
    data = array.buffers()[2]
    return np.zeros(0, np.uint8) if data is None or not len(array) else np.frombuffer(data, np.uint8, _total(array))


def _total(array: pa.Array) -> int:
    return int(np.frombuffer(array.buffers()[1], np.int32)[len(array)])


def unpack_varints(packed: Block) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Read numbers that follow each other: the values, and for each byte whether it is the last of a number.

    Raises :class:`Malformed` for a number of more than ten bytes.
    """
    last = packed < 0x80
    if last.all():
        return packed.astype(np.int64), last
    after = np.flatnonzero(last) + 1
    first = np.concatenate([[0], after[:-1]])
    sizes = after - first
    if len(sizes) and sizes.max() > _LONGEST_VARINT:
        raise Malformed("a number has more than ten bytes")
    values = (packed[first] & 0x7F).astype(np.int64)
    for k in range(1, int(sizes.max(initial=0))):
        longer = np.flatnonzero(sizes > k)
        values[longer] |= (packed[first[longer] + k] & 0x7F).astype(np.int64) << (7 * k)
    return values, last


def pack_varints(numbers: npt.NDArray[np.uint64]) -> tuple[Block, npt.NDArray[np.int64]]:
    """Write numbers one after the other: the bytes, and how many each number takes."""
    sizes = np.ones(len(numbers), np.int64)
    for k in range(1, _LONGEST_VARINT):
        longer = numbers >= np.uint64(1 << (7 * k))
        if not longer.any():
            break
        sizes += longer
    first = np.cumsum(sizes) - sizes
    packed = np.empty(int(sizes.sum()), np.uint8)
    for k in range(int(sizes.max(initial=0))):
        rows = np.flatnonzero(sizes > k)
        byte = ((numbers[rows] >> np.uint64(7 * k)) & np.uint64(0x7F)).astype(np.uint8)
        packed[first[rows] + k] = byte | np.where(sizes[rows] > k + 1, 0x80, 0).astype(np.uint8)
    return packed, sizes


@dataclass(frozen=True)
class Head:
    """What is written before the payloads of many messages: tags and lengths. ``size`` counts head and payload."""

    bytes: pa.Array
    size: npt.NDArray[np.int64]

    def wrapped(self, tag: bytes) -> Head:
        """The head of messages that hold these as their field with this ``tag``, and nothing after it."""
        lengths, widths = pack_varints(self.size.astype(np.uint64))
        joined = pc.binary_join_element_wise(tag, binaries(lengths, widths), self.bytes, b"")
        return Head(joined, self.size + widths + len(tag))

    def after(self, field: bytes) -> Head:
        """The head with another field before it, the same in all messages."""
        return Head(pc.binary_join_element_wise(field, self.bytes, b""), self.size + len(field))


def no_head(sizes: npt.NDArray[np.int64]) -> Head:
    """The head of payloads that have none yet."""
    return Head(binaries(np.zeros(0, np.uint8), np.zeros(len(sizes), np.int64)), sizes)


def binaries(data: Block, sizes: npt.NDArray[np.int64]) -> pa.Array:
    """A binary array whose elements lie one after the other in ``data``."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.BinaryArray.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def sizes_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """The number of bytes of each element, 0 for nulls."""
    return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
