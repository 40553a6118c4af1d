"""What workers and parameter servers send each other: a JSON header, then the raw bytes of each array."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.errors import ProtocolError
from tfos_magic.transport.multipart import cut, joined

Array = np.ndarray[Any, Any]


def pack(header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> list[Any]:
    """Give frames that share the memory of ``arrays``: these must stay as they are until the frames are sent."""
    whole = [np.asarray(array, order="C") for array in arrays]
    described = [[array.dtype.name, array.shape] for array in whole]
    words = json.dumps({**header, "arrays": described}).encode()
    return cut([words, *(array.reshape(-1).view(np.uint8) for array in whole)])


def unpack(frames: Sequence[Any]) -> tuple[dict[str, Any], list[Array]]:
    """Read ZeroMQ frames back; the arrays are read-only views of them. Raises :class:`ProtocolError`."""
    try:
        words, *data = joined([frame.buffer for frame in frames])
        header = json.loads(bytes(words))
        return header, [_view(buffer, *d) for buffer, d in zip(data, header["arrays"], strict=True)]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ProtocolError(f"unreadable message between worker and parameter server: {error}", "unreadable") from None


def nbytes(frames: Sequence[Any]) -> int:
    """Bytes of what :func:`pack` gave."""
    return sum(map(len, frames))


def _view(buffer: Any, dtype: str, shape: Sequence[int]) -> Array:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    if len(buffer) == 0:
        return np.empty(0, kind).reshape(shape)
    return np.frombuffer(buffer, kind).reshape(shape)
