"""A checkpoint as bytes and as messages. NumPy alone: the kernel, which has no TensorFlow, reads and writes it too.

One NumPy ``.npz`` holds the arrays and, as one more array, the JSON of everything else. Nothing is pickled, so what a
worker or a stranger's file system hands back can be read without running it. A digest of all of it stands at its end
and is compared before anything is read: the CRCs of a ZIP archive say nothing of its directory, where one changed bit
hides entries.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tfos_magic.transport.messages import CheckpointPart

PART_BYTES = 8 << 20
CHECKPOINT_BYTES = 16 << 30
"""The most of a checkpoint, which is held in memory on its way: that of a model with more than a billion weights."""

_META = "meta.json"
_SEAL, _DIGEST_BYTES = b"tfos-blake2b-32\n", 32
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, TypeError, OSError)


class Damaged(Exception):
    """Bytes that are no whole checkpoint."""


@dataclass(frozen=True)
class Position:
    """Where training was. ``fit`` counts the calls of ``fit`` in the cell; ``epoch`` and ``step`` are the next to be
    trained; all from 0. ``complete`` says that the fit is over. ``seed`` is that of the run."""

    fit: int
    epoch: int
    step: int
    complete: bool
    seed: int

    @property
    def label(self) -> str:
        """A short name, fit for a file's."""
        return f"fit{self.fit}-" + ("end" if self.complete else f"epoch{self.epoch}-step{self.step}")

    @property
    def words(self) -> str:
        """Where that is, as a person counts: from 1."""
        if self.complete:
            return f"the end of fit {self.fit + 1}"
        where = f"epoch {self.epoch + 1}" + (f", step {self.step + 1}" if self.step else "")
        return where + (f" of fit {self.fit + 1}" if self.fit else "")

    def meta(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return {**self.__dict__}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Position:
        """Read :meth:`meta` back. Raises :class:`Damaged` when a field is missing or of another kind."""
        try:
            counts = [meta[name] for name in ("fit", "epoch", "step", "seed")]
            if any(type(count) is not int or count < 0 for count in counts) or type(meta["complete"]) is not bool:
                raise Damaged("the position is not made of counts")
            return cls(counts[0], counts[1], counts[2], meta["complete"], counts[3])
        except KeyError as error:
            raise Damaged(f"the position lacks {error}") from None


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on. ``details`` is what JSON holds, ``arrays`` the variables and what else is large."""

    position: Position
    details: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


def encode(checkpoint: Checkpoint) -> bytes:
    """Give the ``.npz`` of a checkpoint with its digest behind it, which ``np.load`` passes over.

    Its arrays must have NumPy's own dtypes.
    """
    meta = json.dumps({"position": checkpoint.position.meta(), "details": dict(checkpoint.details)})
    buffer = io.BytesIO()
    entries: dict[str, Any] = {_META: np.frombuffer(meta.encode(), np.uint8), **checkpoint.arrays}
    np.savez(buffer, **entries)
    digest = _digest(buffer.getbuffer())
    buffer.seek(0, io.SEEK_END)
    buffer.write(_SEAL + digest)
    return buffer.getvalue()


def decode(data: bytes) -> Checkpoint:
    """Read :func:`encode` back; the arrays are read-only. Raises :class:`Damaged` when a bit is missing or changed."""
    _check_seal(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            arrays = {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}
        meta = json.loads(arrays.pop(_META).tobytes())
        return Checkpoint(Position.from_meta(meta["position"]), meta["details"], arrays)
    except _UNREADABLE as error:
        raise Damaged(f"{type(error).__name__}: {error}") from None


def decode_whole(data: bytes) -> Checkpoint:
    """As :func:`decode`, of a checkpoint that has every variable; :class:`Damaged` names the first that is not there.

    One that ranks share lacks those that they broadcast.
    """
    checkpoint = decode(data)
    for index, (path, _, _) in enumerate(checkpoint.details.get("layout", ())):
        if f"v{index}" not in checkpoint.arrays:
            raise Damaged(f"it lacks the values of {path}")
    return checkpoint


def _check_seal(data: bytes) -> None:
    """Raise :class:`Damaged` where the digest at the end is not that of what stands before it."""
    if not data:
        raise Damaged("it is empty")
    view = memoryview(data)
    content, seal = view[: -len(_SEAL) - _DIGEST_BYTES], bytes(view[-len(_SEAL) - _DIGEST_BYTES :])
    if not seal.startswith(_SEAL):
        raise Damaged("it is truncated or changed")
    if seal[len(_SEAL) :] != _digest(content):
        raise Damaged("its content differs from what was written")


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _array(data: bytes) -> npt.NDArray[Any]:
    """The array of a ``.npy``, without a copy: ``np.load`` reads one from an archive in small pieces."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = header(stream)
    if dtype.hasobject:
        raise Damaged("it holds pickled objects")
    return np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape, order="F" if in_columns else "C")


def split(run_id: str, name: str, position: Position, data: bytes, rank: int = 0) -> Iterator[CheckpointPart]:
    """Cut the bytes of a checkpoint into messages. No other checkpoint of the run may have its ``name``."""
    count = max(1, -(-len(data) // PART_BYTES))
    view = memoryview(data)
    for index in range(count):
        piece = bytes(view[index * PART_BYTES : (index + 1) * PART_BYTES])
        yield CheckpointPart(run_id, rank, name, index, count, position.meta(), piece)


class Assembly:
    """Puts parts together again. They come in order; a new name means that the one before will not be whole."""

    def __init__(self) -> None:
        self._name = ""
        self._pieces: list[bytes] = []

    def add(self, part: CheckpointPart) -> bytes | None:
        """Take the next part; gives the whole checkpoint's bytes with its last one.

        Raises :class:`Damaged`, once, for one that is larger than any may be, of which nothing is kept.
        """
        if part.index == 0:
            self._name, self._pieces = part.name, []
        if part.name != self._name or part.index != len(self._pieces):
            return None
        if len(part.payload) > PART_BYTES or part.count * PART_BYTES > CHECKPOINT_BYTES or part.index >= part.count:
            self._name, self._pieces = "", []
            raise Damaged(f"it is larger than {CHECKPOINT_BYTES >> 30} GB, or not in the format of checkpoints")
        self._pieces.append(part.payload)
        if part.index + 1 < part.count:
            return None
        data, self._name, self._pieces = b"".join(self._pieces), "", []
        return data


def assemble(parts: Iterable[CheckpointPart]) -> list[Checkpoint]:
    """The checkpoints that ``parts``, in their order, are made of. Raises :class:`Damaged`."""
    assembly = Assembly()
    return [decode_whole(data) for data in map(assembly.add, parts) if data is not None]
