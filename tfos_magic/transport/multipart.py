"""Messages of any size in frames of a few hundred kilobytes, so that a socket can refuse larger ones unread.

The bound of a ZeroMQ socket (ZMQ_MAXMSGSIZE) holds for frames, those of strangers in their handshake included. So each
part of a message is cut into frames of ``FRAME_BYTES`` and ends with a shorter one, empty where nothing is left, as
transfers over USB do. Frames are encrypted while others are decrypted, so that large parts arrive sooner, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tfos_magic.errors import ProtocolError

FRAME_BYTES = 256 << 10


def cut(parts: Iterable[Any]) -> list[Any]:
    """The frames of ``parts``, which are buffers of bytes; views of large ones, which share their memory."""
    return [frame for part in parts for frame in _frames(part)]


def joined(frames: Iterable[Any]) -> list[Any]:
    """The parts that were cut into ``frames``. Raises :class:`ProtocolError` where the last one does not end."""
    parts, pieces = [], []
    for frame in frames:
        pieces.append(frame)
        if len(frame) < FRAME_BYTES:
            parts.append(b"".join(pieces) if len(pieces) > 1 else frame)
            pieces = []
    if pieces:
        raise ProtocolError("a message was cut short")
    return parts


def _frames(part: Any) -> Iterator[Any]:
    if len(part) < FRAME_BYTES:
        yield part
        return
    view = memoryview(part)
    for offset in range(0, len(part) + 1, FRAME_BYTES):
        yield view[offset : offset + FRAME_BYTES]
