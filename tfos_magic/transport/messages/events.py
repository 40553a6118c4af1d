"""What trainers tell the kernel, through their agents, while a cell runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tfos_magic.transport.messages.message import Message

EVENT_FILE_BYTES, EVENT_RUN_BYTES = 256 << 20, 1 << 30
"""The most of one event file and of a run's: workers send no more, and the kernel keeps no more."""


@dataclass(frozen=True)
class Alive(Message):
    """The trainer's sign of life, each second, for its agent alone."""


@dataclass(frozen=True)
class TrainerReady(Message):
    """TensorFlow is loaded and the cluster of this generation is formed on this rank."""

    generation: int
    rank: int
    pid: int
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    error: str = ""


@dataclass(frozen=True)
class RunStarted(Message):
    """The cell's first line is about to run."""

    run_id: str
    rank: int


@dataclass(frozen=True)
class Output(Message):
    """Text that a trainer printed; ``run_id`` is empty outside a run, ``stream`` is ``stdout`` or ``stderr``."""

    run_id: str
    rank: int
    stream: str
    text: str


@dataclass(frozen=True)
class Display(Message):
    """Something that a cell shows: ``data`` is a MIME bundle as in Jupyter's messages, images as base64."""

    run_id: str
    rank: int
    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress(Message):
    """Where a rank is. Steps count within the epoch, epochs from 0; ``steps`` and ``epochs`` are 0 when unknown.

    ``rows`` counts the rows this rank trained on since the run began, ``sent`` the bytes it sent to other ranks and to
    servers; ``phase`` is ``train``, ``validate`` or ``checkpoint``; ``metrics`` are this rank's running values.
    ``data_seconds`` and ``peer_seconds`` grow by what it waited for its next batch, and for other ranks or servers;
    ``exchange_seconds`` by what it exchanged with ranks that had all come. ``fit`` is that of :class:`EpochEnd`.
    """

    run_id: str
    rank: int
    phase: str
    epoch: int
    epochs: int
    step: int
    steps: int
    rows: int
    metrics: dict[str, float] = field(default_factory=dict)
    sent: int = 0
    data_seconds: float = 0.0
    peer_seconds: float = 0.0
    exchange_seconds: float = 0.0
    fit: int = 0


@dataclass(frozen=True)
class EpochEnd(Message):
    """Global metrics after an epoch, validation included under ``val_`` names. Sent by rank 0. The cell's ``fit``s are
    counted from 0.

    ``past`` epochs were trained by an earlier attempt at the run, and are said again by the one that goes on from it.
    """

    run_id: str
    rank: int
    epoch: int
    epochs: int
    metrics: dict[str, float] = field(default_factory=dict)
    past: bool = False
    fit: int = 0


@dataclass(frozen=True)
class Notice(Message):
    """Something the user should know about how the run was distributed."""

    run_id: str
    rank: int
    text: str


@dataclass(frozen=True)
class CheckpointPart(Message):
    """Part ``index`` of ``count`` of the checkpoint ``name``, from rank 0 to the kernel; the other way before a run
    that goes on from it. ``meta`` says where training was; it comes with every part."""

    run_id: str
    rank: int
    name: str
    index: int
    count: int
    meta: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""


@dataclass(frozen=True)
class EventFilePart(Message):
    """A piece of an event file for TensorBoard that rank 0's cell writes, from its byte ``offset`` on.

    ``origin`` is the file's path on rank 0's host, ``path`` its place below the run's log directory, parts joined by
    ``/``.
    """

    run_id: str
    rank: int
    path: str
    origin: str
    offset: int
    payload: bytes = b""


@dataclass(frozen=True)
class OutputPart(Message):
    """A piece of what a rank sends back, before its cell ends: of its buffer number ``buffer``, which has ``size``
    bytes, those from ``offset`` on. All buffers together have ``total`` bytes."""

    run_id: str
    rank: int
    buffer: int
    offset: int
    size: int
    total: int
    payload: bytes = b""


@dataclass(frozen=True)
class CellLeft:
    """What a cell has left in its process beside its names; empty where it has not begun.

    These are random states, how often Keras has given each name, settings of libraries, the variables of the
    environment that it has set (None: deleted), filters of warnings, and the directory that it went to, if that is on
    the notebook's disk.
    """

    random: dict[str, Any] = field(default_factory=dict)
    names_given: dict[str, int] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    warnings: list[list[Any]] = field(default_factory=list)
    directory: str = ""


@dataclass(frozen=True)
class RunFinished(Message):
    """The cell ended on this rank: ``status`` is ``ok``, ``stopped`` or ``error``.

    ``parcels`` say what the names asked back are made of: each has ``names`` that are packed together, and the numbers
    of ``buffers`` that were sent before, the first of which is the pickle; ``otherwise`` are those that it is made of,
    should it not be read. ``missing`` says why a name did not come.
    ``error`` holds ``kind``, ``message``, ``traceback`` and ``line`` of the cell. ``clean`` is false when the process
    cannot be used for another cell. ``left`` is what the cell has left on rank 0.
    """

    run_id: str
    rank: int
    status: str
    error: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    clean: bool = True
    parcels: list[dict[str, Any]] = field(default_factory=list)
    left: CellLeft = field(default_factory=CellLeft)
