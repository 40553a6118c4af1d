"""What is known of a run, folded from its messages: the one thing every view draws.

:class:`RunState` is changed only by :func:`apply` and by the run's own thread; a view gets it read-only, at most four
times a second, and keeps no state of the run itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tfos_magic.protocol import EpochEnd, Message, Notice, Output, Progress, RunFinished, RunStarted

LOG_LINES = 200


class RunPhase(str, Enum):
    """Where a run is. The last three are ends."""

    STARTING = "starting"
    FEEDING = "feeding"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (RunPhase.DONE, RunPhase.STOPPED, RunPhase.FAILED)


@dataclass
class WorkerState:
    """One rank: who and where it is, what it is doing, and its pace (rows per second over the last seconds).

    ``sent`` counts the bytes that it sent to other ranks and to servers for training.
    """

    rank: int
    host: str = ""
    pid: int = 0
    device: str = "cpu"
    state: str = "waiting"
    epoch: int = 0
    step: int = 0
    steps: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    memory: int = 0
    sent: int = 0
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    _marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=16), repr=False)

    def forget_pace(self) -> None:
        """The count of rows begins anew."""
        self._marks.clear()

    def mark(self, now: float, rows: int) -> None:
        """Note the rows trained so far, and derive the pace from the oldest mark kept."""
        self.rows = rows
        self._marks.append((now, rows))
        then, before = self._marks[0]
        if now > then:
            self.rows_per_second = (rows - before) / (now - then)


@dataclass
class FeedState:
    """A DataFrame on its way to the workers; ``seconds`` runs until ``done``. ``reused`` feeds were there already."""

    name: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    done: bool = False
    reused: bool = False


@dataclass
class RunState:
    """One run of one cell. Times are seconds of ``clock``; epochs and steps count from 0; ``history`` is by epoch.

    ``restarts`` counts how often it began again, a worker having been lost; ``replaying`` is true from then until the
    first news of the new attempt, which says what of ``history`` is trained again.
    """

    run_id: str
    name: str
    strategy: str
    workers: list[WorkerState]
    phase: RunPhase = RunPhase.STARTING
    started: float = 0.0
    ended: float = 0.0
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    steps: int = 0
    stage: str = "train"
    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    restarts: int = 0
    replaying: bool = False
    epochs_done: list[int] = field(default_factory=list)
    feeds: dict[str, FeedState] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    error: str = ""
    log_dir: str = ""
    clock: Callable[[], float] = time.monotonic

    @property
    def elapsed(self) -> float:
        """Seconds since the cell was started, up to its end."""
        return (self.ended or self.clock()) - self.started

    @property
    def rows_per_second(self) -> float:
        return sum(worker.rows_per_second for worker in self.workers)

    @property
    def sent_per_epoch(self) -> float:
        """Bytes that all workers together sent in a finished epoch, on the average; 0 before there is one."""
        return sum(worker.sent for worker in self.workers) / len(self.history) if self.history else 0.0

    @property
    def fraction(self) -> float:
        """Share of all epochs that is done, 0 to 1; 0 while the number of epochs or steps is unknown."""
        if self.phase is RunPhase.DONE:
            return 1.0
        if not self.epochs:
            return 0.0
        within = min(1.0, self.step / self.steps) if self.steps else 0.0
        return min(1.0, (len(self.history) + (within if self.epoch >= len(self.history) else 0.0)) / self.epochs)


def apply(state: RunState, message: Message) -> None:
    """Fold one message of the run into ``state``; messages of other runs and unknown kinds change nothing."""
    if getattr(message, "run_id", state.run_id) != state.run_id:
        return
    rank = getattr(message, "rank", None)
    if not isinstance(rank, int) or not 0 <= rank < len(state.workers):
        return
    worker = state.workers[rank]
    match message:
        case RunStarted():
            worker.state = "running"
            if state.phase in (RunPhase.STARTING, RunPhase.FEEDING):
                state.phase = RunPhase.RUNNING
        case Progress():
            _progress(state, worker, message)
        case EpochEnd():
            _epoch_end(state, message)
        case Output():
            worker.log.extend(line for line in message.text.splitlines() if line.strip())
        case Notice():
            if message.text not in state.notices:
                state.notices.append(message.text)
        case RunFinished():
            worker.state = {"ok": "done", "stopped": "stopped"}.get(message.status, "failed")
            worker.rows_per_second = 0.0 if message.status == "error" else worker.rows_per_second


def _progress(state: RunState, worker: WorkerState, message: Progress) -> None:
    worker.state = "training" if message.phase == "train" else "validating"
    worker.epoch, worker.step, worker.steps = message.epoch, message.step, message.steps
    worker.mark(state.clock(), message.rows)
    worker.sent = message.sent
    if message.rank == 0:
        _forget_from(state, message.epoch)
        state.stage, state.epoch, state.epochs = message.phase, message.epoch, message.epochs
        if message.phase == "train":
            state.step, state.steps = message.step, message.steps
            state.metrics.update(message.metrics)


def _epoch_end(state: RunState, message: EpochEnd) -> None:
    _forget_from(state, message.epoch)
    state.epochs = message.epochs
    state.metrics = dict(message.metrics)
    if message.epoch == 0 and state.history:
        state.history.clear()  # a second fit in the same cell starts its own curve
        state.epochs_done.clear()
    state.history.append(dict(message.metrics))
    state.epochs_done.append(message.epoch)


def rewind(state: RunState) -> None:
    """The run begins again, a worker having been lost: count it, and await what the new attempt trains again."""
    state.restarts += 1
    state.replaying = True
    state.phase, state.step, state.metrics = RunPhase.STARTING, 0, {}
    for worker in state.workers:
        worker.state, worker.rows_per_second = "waiting", 0.0
        worker.forget_pace()


def _forget_from(state: RunState, epoch: int) -> None:
    """After a restart: take back from the history what is trained again, so that no epoch is in it twice."""
    if not state.replaying:
        return
    state.replaying = False
    kept = [(done, metrics) for done, metrics in zip(state.epochs_done, state.history, strict=True) if done < epoch]
    state.epochs_done[:] = [done for done, _ in kept]
    state.history[:] = [metrics for _, metrics in kept]
