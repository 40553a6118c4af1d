"""What the kernel tells agents; those for their trainers they hand on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tfos_magic.transport.identity import Identity
from tfos_magic.transport.messages.feeds import FeedUse, RowsHandle
from tfos_magic.transport.messages.message import Message
from tfos_magic.transport.messages.strategy_options import APART, StrategyOptions


@dataclass(frozen=True)
class StartTrainer(Message):
    """Spawn a trainer for this generation. ``addresses`` holds ``host:port`` by rank.

    ``role`` is ``worker`` or ``ps``; ``servers`` holds the addresses of the parameter servers. ``secret`` is known to
    the trainers of this generation alone, so that they know each other. One that comes ``late``, in the place of
    another, finds the servers and no other worker. ``nccl`` asks for TensorFlow's own collectives.
    ``names`` are those in the certificates of all ranks, where what crosses hosts is to be encrypted: then the agent
    adds its own ``identity``.
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
    secret: str = field(default="", repr=False)
    late: bool = False
    nccl: bool = False
    names: list[str] = field(default_factory=list)
    identity: Identity | None = None


@dataclass(frozen=True)
class NotebookState:
    """What a cell finds of the notebook's process beside its names: settings of libraries, how often Keras has given
    each name, variables of the environment (None: not there), how loggers are set up, and filters of warnings.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    names_given: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    logging: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class RunCell(Message):
    """Run a cell. ``payload`` is packed ``{name: value}``; ``feeds`` are the DataFrames that it reads, by name.

    ``checkpoints`` says when they are taken: ``every`` so many steps (0: each epoch), whether they were ``asked`` for,
    and the run's ``setting``; empty means never. ``event_files`` asks rank 0 for what the cell writes for TensorBoard.
    ``keras`` is the version that the kernel has, empty where it has no TensorFlow, which says how the ``outputs`` are
    packed. ``place`` tells where the notebook works, as :func:`~tfos_magic.disk.place.tell_place` does, and ``sources``
    are the texts of modules that lie there, by relative path; ``module_states`` is what the notebook has set in them,
    as :func:`~tfos_magic.disk.imports.set_states` takes it. ``random`` are the random states that the cell begins with,
    as :func:`~tfos_magic.values.random_state.taken` gives them; empty where ``seed`` was asked for. The agent adds
    the channel of ``rows`` of a program that asks for them. Where the cell ``asks``, the kernel chooses what is
    suggested there, and says whether its ``outputs`` are wanted.
    """

    run_id: str
    source: str
    filename: str
    strategy: str
    seed: int
    outputs: list[str]
    feeds: dict[str, FeedUse] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    options: StrategyOptions = field(default_factory=StrategyOptions)
    checkpoints: dict[str, Any] = field(default_factory=dict)
    event_files: bool = False
    keras: str = ""
    notebook: NotebookState = field(default_factory=NotebookState)
    place: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    module_states: dict[str, str] = field(default_factory=dict)
    random: dict[str, Any] = field(default_factory=dict)
    rows: RowsHandle | None = None
    asks: bool = False
    payload: bytes = b""

    @property
    def apart(self) -> bool:
        """Whether each worker runs the cell as it is, unless the cell itself asks for more."""
        return self.strategy in APART


@dataclass(frozen=True)
class StopRun(Message):
    """End the run at the next step that all ranks share; the trainer lives on.

    With ``abandon`` another rank has ended by an error, and this one ends where it waits for it, too. With ``leave``
    the run goes on elsewhere: it ends with a checkpoint, at the next ``step`` or at the end of the ``epoch``, and not
    before; where none can be taken it goes on.
    """

    run_id: str
    abandon: bool = False
    leave: str = ""


@dataclass(frozen=True)
class OutputTaken(Message):
    """One more :class:`OutputPart` has arrived, so that the next can be sent."""

    run_id: str


@dataclass(frozen=True)
class Heard(Message):
    """The answer to a heartbeat, so that the agent knows what has arrived."""


@dataclass(frozen=True)
class Shutdown(Message):
    """End the trainer, drop the spool, end the agent: the Spark task returns."""
