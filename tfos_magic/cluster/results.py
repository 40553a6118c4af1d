"""The names that a cell was asked for, as values in the notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cloudpickle

from tfos_magic.errors import CaptureError
from tfos_magic.protocol import RunFinished
from tfos_magic.quiet import quiet_tensorflow


def unpack(end: RunFinished) -> dict[str, Any]:
    """The names that one rank sent back. Raises :class:`CaptureError`, with those that came, where some did not."""
    packed: dict[str, bytes] = cloudpickle.loads(end.payload) if end.payload else {}
    with quiet_tensorflow():
        values = {name: cloudpickle.loads(data) for name, data in packed.items()}
    if end.missing:
        raise CaptureError("Some of the names asked back with -o did not come: " + "; ".join(end.missing) + ".", values)
    return values


def unpack_by_rank(ends: Mapping[int, RunFinished]) -> dict[str, dict[int, Any]]:
    """What each rank sent back, by name and rank."""
    values = {rank: unpack(end) for rank, end in ends.items()}
    names = dict.fromkeys(name for found in values.values() for name in found)
    return {name: {rank: found[name] for rank, found in values.items() if name in found} for name in names}
