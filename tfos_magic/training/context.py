"""What a run is given: its peers, where its messages go, and how it is asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfos_magic.checkpoints.checkpoint import Checkpoint
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.parameter_server.client import ServerGroup
from tfos_magic.transport.messages import Message, RowsHandle, StrategyOptions


class StopSignal:
    """A request to end the run at the next step that all ranks share. Any thread may ask; asking twice is harmless.

    ``heeded_by`` is set while a run is under way, and tells whether steps are that come to it by themselves. Where the
    run goes on elsewhere, ``leaving`` is ``step`` or ``epoch``: the end of which it leaves, with a checkpoint.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.leaving = ""
        self.heeded_by: Callable[[], bool] = lambda: False

    def request(self) -> None:
        self._event.set()

    def is_heeded(self) -> bool:
        """Whether what is under way ends by itself at a step that all ranks share."""
        return self.heeded_by()

    @property
    def requested(self) -> bool:
        return self._event.is_set()


@dataclass(frozen=True)
class CheckpointPlan:
    """Whether and when checkpoints are taken: every ``every`` steps, or after each epoch when 0.

    Those that were not ``asked`` for, by naming a directory, are left out where they would cost too much time. Each has
    the run's ``setting`` in it, as :meth:`~tfos_magic.checkpoints.setting.Setting.meta` gives it.
    """

    enabled: bool = False
    asked: bool = False
    every: int = 0
    setting: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Calls:
    """What a cell asked of the functions on ranks: whether it knows its ``rank``, whether workers ``exchanged``."""

    rank: bool = False
    exchanged: int = 0


@dataclass(frozen=True)
class RunContext:
    """One run of one cell on one rank. ``seed`` must be the same on all ranks; ``emit`` may be called at any step.

    ``resume`` is, on rank 0, what an earlier attempt recorded: the last checkpoint of each ``fit``. ``servers`` are
    this process's connections to the parameter servers, where the cluster has any. ``event_files`` says whether rank 0
    sends on what the cell writes for TensorBoard. ``owns`` tells whether a file that this rank writes to a path is
    apart from those of the others, and ``refresh`` takes over what rank 0 has written meanwhile. ``calls`` is filled in
    while the cell runs. ``feeds`` holds, by the names of DataFrames, what tells their rows from others, and ``random``
    the random states to begin with, where these are not those of ``seed``; checkpoints keep both. ``rows`` is the
    channel of a program that is fed rows."""

    run_id: str
    collectives: Collectives
    emit: Callable[[Message], None]
    stop: StopSignal
    strategy: str = "sync"
    seed: int = 0
    options: StrategyOptions = field(default_factory=StrategyOptions)
    checkpoints: CheckpointPlan = field(default_factory=CheckpointPlan)
    resume: Sequence[Checkpoint] = ()
    local_rank: int = 0
    servers: ServerGroup | None = None
    event_files: bool = False
    calls: Calls = field(default_factory=Calls)
    owns: Callable[[str], bool] = lambda path: False
    refresh: Callable[[], None] = lambda: None
    feeds: Mapping[str, Sequence[int]] = field(default_factory=dict)
    random: Mapping[str, Any] = field(default_factory=dict)
    rows: RowsHandle | None = None
