"""The messages between kernel, agents and trainers, and their only wire format.

A message is a frozen dataclass. On the wire it is two frames: a JSON header with the message's type and fields, and
the raw bytes of its ``payload`` field (empty where it has none). Nothing here is pickled: where a payload holds a
pickle, only the authenticated peer it is meant for opens it.

Directions: *agent* messages go from an agent to the kernel, *command* messages from the kernel to an agent (which
hands those for its trainer on), *event* messages from a trainer through its agent to the kernel.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from tfos_magic.errors import ProtocolError

MAX_HEADER_BYTES = 64 << 20

_TYPES: dict[str, type[Message]] = {}


@dataclass(frozen=True)
class Message:
    """Base of all messages; a subclass is known to :func:`decode` by its name."""

    def __init_subclass__(cls) -> None:
        _TYPES[cls.__name__] = cls


# --- agent to kernel ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Register(Message):
    """An agent is up. ``slot`` is its Spark partition, ``tensor_port`` the port it holds for TensorFlow.

    ``job`` is the name of the Spark job it belongs to: after the loss of an agent all are replaced by a new job's.
    """

    slot: int
    host: str
    pid: int
    tensor_port: int
    feed_uri: str
    job: str = ""
    gpus: list[str] = field(default_factory=list)
    cores: int = 1
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Heartbeat(Message):
    """Sent each second by every agent. Sizes in bytes; ``feeds`` maps an open feed to its rows so far."""

    trainer_pid: int = 0
    trainer_rss: int = 0
    spool_bytes: int = 0
    feeds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainerExited(Message):
    """The trainer process ended without being asked to. ``signal`` is 0 for an ordinary exit.

    ``reason`` is the agent's, where it ended the trainer itself, such as ``did not answer for 20 s``.
    """

    generation: int
    rank: int
    exit_code: int
    signal: int
    output: str
    reason: str = ""


@dataclass(frozen=True)
class FeedOpened(Message):
    """An agent's answer to ``OpenFeed``: rows may come now, or why they may not."""

    feed_id: str
    error: str = ""


@dataclass(frozen=True)
class FeedAttached(Message):
    """An agent's answer to ``CommitFeed``: what its spool holds of the feed, or why it cannot serve it."""

    feed_id: str
    rows: int
    bytes: int
    error: str = ""


@dataclass(frozen=True)
class NeedRoom(Message):
    """The rows of a feed wait, for the agent's budget is spent by the feeds that it ``held`` when it said so."""

    feed_id: str
    held: list[str]


@dataclass(frozen=True)
class FeedWanted(Message):
    """A trainer begins to read an epoch of a streamed feed."""

    lease: str
    epoch: int


@dataclass(frozen=True)
class FeedDropped(Message):
    """A trainer has stopped reading an epoch of a streamed feed before its end."""

    lease: str
    epoch: int


@dataclass(frozen=True)
class Reconnected(Message):
    """The connection is there, for the first time or again: what has not arrived is to be sent again."""


@dataclass(frozen=True)
class AgentEnded(Message):
    """The agent ends without having been asked to, such as on a signal; its last message."""

    reason: str


@dataclass(frozen=True)
class AgentFailed(Message):
    """The agent cannot go on; it ends after this message."""

    host: str
    reason: str


# --- kernel to agent ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartTrainer(Message):
    """Spawn a trainer for this generation. ``addresses`` holds ``host:port`` by rank.

    ``role`` is ``worker`` or ``ps``; ``servers`` holds the addresses of the parameter servers. ``secret`` is known to
    the trainers of this generation alone, so that they know each other. One that comes ``late``, in the place of
    another, finds the servers and no other worker.
    """

    generation: int
    rank: int
    addresses: list[str]
    local_rank: int = 0
    local_size: int = 1
    sys_path: list[str] = field(default_factory=list)
    timeout: float = 60.0
    role: str = "worker"
    servers: list[str] = field(default_factory=list)
    secret: str = ""
    late: bool = False


@dataclass(frozen=True)
class RunCell(Message):
    """Run a cell. ``payload`` is a cloudpickle of ``{name: value}``; ``feeds`` maps names to :class:`FeedUse` dicts.

    ``options`` are the strategy's: ``bucket_mb`` and ``compression`` (sync), ``max_staleness`` (async), ``sync_every``,
    ``average_state``, ``outer_momentum`` and ``outer_learning_rate`` (local). ``checkpoints`` says when they are taken:
    ``every`` so many steps (0: each epoch), and whether they were ``asked`` for; empty means never. ``event_files``
    asks rank 0 for what the cell writes for TensorBoard.
    """

    run_id: str
    source: str
    filename: str
    strategy: str
    seed: int
    outputs: list[str]
    feeds: dict[str, dict[str, Any]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)
    event_files: bool = False
    payload: bytes = b""


@dataclass(frozen=True)
class StopRun(Message):
    """End the run at the next step that all ranks share; the trainer lives on."""

    run_id: str


@dataclass(frozen=True)
class KillTrainer(Message):
    """End the trainer process now."""

    generation: int


@dataclass(frozen=True)
class OpenFeed(Message):
    """Make room in the spool for a feed; ``schema`` is an Arrow schema as base64 of its IPC form."""

    feed_id: str
    rank: int
    world: int
    schema: str


@dataclass(frozen=True)
class CommitFeed(Message):
    """All rows are sent: keep these ``(partition, attempt, rows)`` of the whole DataFrame, drop other attempts.

    ``schema`` is that of ``OpenFeed``, and tells the shapes of lists.
    """

    feed_id: str
    partitions: list[list[int]]
    schema: str = ""


@dataclass(frozen=True)
class RefuseFeed(Message):
    """There is no room for a feed, and none will be made: its tasks are to end."""

    feed_id: str
    reason: str


@dataclass(frozen=True)
class OpenStream(Message):
    """Take the rows of one epoch of a streamed feed; where it is not ``wanted``, forget them. ``schema`` is settled.

    Of ``live`` rows ``ConfirmStream`` tells how many have been sent. The answer is ``FeedOpened`` of ``stream``.
    """

    stream: str
    rank: int
    world: int
    schema: str
    wanted: bool = True
    live: bool = False


@dataclass(frozen=True)
class ConfirmStream(Message):
    """So many partitions of live rows have been sent to all workers."""

    stream: str
    partitions: int


@dataclass(frozen=True)
class EndStream(Message):
    """All rows of an epoch are sent, in so many partitions; or none will come any more, for ``error``, of ``kind``."""

    stream: str
    partitions: int
    kind: str = ""
    error: str = ""


@dataclass(frozen=True)
class ReleaseFeed(Message):
    """Forget a feed, or a lease with its streams, and give the disk space back. Unknown ones are ignored."""

    feed_id: str


@dataclass(frozen=True)
class Heard(Message):
    """The answer to a heartbeat, so that the agent knows what has arrived."""


@dataclass(frozen=True)
class Shutdown(Message):
    """End the trainer, drop the spool, end the agent: the Spark task returns."""


# --- trainer to kernel -------------------------------------------------------------------------------------------


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
    ``data_seconds`` and ``peer_seconds`` grow by what it waited for its next batch, and for other ranks or servers.
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


@dataclass(frozen=True)
class EpochEnd(Message):
    """Global metrics after an epoch, validation included under ``val_`` names. Sent by rank 0.

    ``past`` epochs were trained by an earlier attempt at the run, and are said again by the one that goes on from it.
    """

    run_id: str
    rank: int
    epoch: int
    epochs: int
    metrics: dict[str, float] = field(default_factory=dict)
    past: bool = False


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
class RunFinished(Message):
    """The cell ended on this rank: ``status`` is ``ok``, ``stopped`` or ``error``.

    ``payload`` (rank 0, status ok) is a cloudpickle of the names asked back; ``error`` holds ``kind``, ``message``,
    ``traceback`` and ``line`` of the cell. ``clean`` is false when the process cannot be used for another cell.
    """

    run_id: str
    rank: int
    status: str
    error: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    clean: bool = True
    payload: bytes = b""


def encode(message: Message) -> list[bytes]:
    """Give the two frames of ``message``: JSON header and payload bytes."""
    fields = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    payload = fields.pop("payload", b"")
    header = json.dumps({"type": type(message).__name__, **fields}, separators=(",", ":"))
    return [header.encode(), payload]


def decode(frames: list[bytes]) -> Message:
    """Read two frames back into a message. Raises :class:`ProtocolError` on anything unexpected."""
    if len(frames) != 2 or len(frames[0]) > MAX_HEADER_BYTES:
        raise ProtocolError(f"a message has two frames, this has {len(frames)}, or its header is too long")
    try:
        fields = json.loads(frames[0])
        cls = _TYPES[fields.pop("type")]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ProtocolError(f"unreadable message header: {type(error).__name__}") from None
    if any(f.name == "payload" for f in dataclasses.fields(cls)):
        fields["payload"] = bytes(frames[1])
    _check_fields(cls, fields)
    return cls(**fields)


def _check_fields(cls: type[Message], fields: dict[str, Any]) -> None:
    """Refuse missing, unknown or wrongly typed fields, so that no handler meets them."""
    known = {f.name: f for f in dataclasses.fields(cls)}
    if unknown := fields.keys() - known.keys():
        raise ProtocolError(f"{cls.__name__} has no field {sorted(unknown)}")
    for name, spec in known.items():
        if name not in fields:
            if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
                raise ProtocolError(f"{cls.__name__} lacks its field {name!r}")
            continue
        base = str(spec.type).split("[")[0]
        accepted = _JSON_TYPES[base]
        if not isinstance(fields[name], accepted) or (base != "bool" and isinstance(fields[name], bool)):
            raise ProtocolError(f"{cls.__name__}.{name} must be {base}")


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "bytes": (bytes,),
    "list": (list,),
    "dict": (dict,),
}
