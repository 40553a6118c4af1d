"""What workers and parameter servers send each other: a JSON header, then one frame of raw bytes per array."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.errors import ProtocolError

Array = np.ndarray[Any, Any]


def pack(header: Mapping[str, Any], arrays: Sequence[Array] = ()) -> list[Any]:
    """Give frames that share the memory of ``arrays``: these must stay as they are until the frames are sent."""
    whole = [np.asarray(array, order="C") for array in arrays]
    described = [[array.dtype.name, array.shape] for array in whole]
    return [json.dumps({**header, "arrays": described}).encode(), *(a.reshape(-1).view(np.uint8) for a in whole)]


def unpack(frames: Sequence[Any]) -> tuple[dict[str, Any], list[Array]]:
    """Read ZeroMQ frames back; the arrays are read-only views of them. Raises :class:`ProtocolError`."""
    try:
        header = json.loads(bytes(frames[0].buffer))
        described = header["arrays"]
        return header, [_view(f.buffer, *d) for f, d in zip(frames[1:], described, strict=True)]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ProtocolError(f"unreadable message between worker and parameter server: {error}") from None


def nbytes(frames: Sequence[Any]) -> int:
    """Bytes of what :func:`pack` gave."""
    return len(frames[0]) + sum(frame.nbytes for frame in frames[1:])


def _view(buffer: Any, dtype: str, shape: Sequence[int]) -> Array:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    if len(buffer) == 0:
        return np.empty(shape, kind)
    return np.frombuffer(buffer, kind).reshape(shape)
