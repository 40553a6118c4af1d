"""What is known of a run, folded from its messages: the one thing every view draws.

A view gets :class:`RunState` read-only, at most four times a second, and keeps no state of the run itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tfos_magic.cluster.runs.metric_series import Awaited, MetricSeries, Stopwatch
from tfos_magic.cluster.runs.worker_state import WorkerState, over_workers
from tfos_magic.transport.messages import EpochEnd, Message, Notice, Output, Progress, RunFinished, RunStarted

_DOING = {"train": "training", "validate": "validating", "checkpoint": "saving", "rest": "running the cell"}


class RunPhase(str, Enum):
    """Where a run is. The last three are ends."""

    QUEUED = "queued"
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
class FeedState:
    """A DataFrame on its way to the workers; ``seconds`` runs until ``done``. ``reused`` feeds were there already.

    ``streamed`` ones come anew in every epoch. What a ``released`` one took is free again. ``columns`` tells dtype and
    shape of every column, each in words.
    """

    name: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    done: bool = False
    reused: bool = False
    columns: tuple[str, ...] = ()
    streamed: bool = False
    released: bool = False


@dataclass(repr=False)
class RunState:
    """One run of one cell. Times are seconds of ``clock``; epochs and steps count from 0; ``history`` is by epoch.

    ``history`` is that of the cell's ``fit``-th fit, counted from 0, ``epochs_done`` its epochs; ``earlier`` has
    those before, by number and epoch. ``generation`` is that of its trainers. ``restarts`` counts how often it
    began again, a worker having been lost; ``replaying`` is true from then until the first news of the new attempt,
    which says what of ``history`` is trained again. ``traces`` holds rank 0's running metrics by epochs trained,
    ``pace`` the rows per second of all by seconds, ``planned`` the epochs of that ``fit``, ``counted`` those that this
    attempt trained, ``printed`` the lines printed. Of ``returning`` bytes that rank 0 sends back ``returned`` arrived.
    ``settings`` tell it from others; ``awaited`` is what it waits for; ``begun`` is false while ``ahead`` are some.
    """

    run_id: str
    name: str
    strategy: str
    workers: list[WorkerState]
    servers: list[WorkerState] = field(default_factory=list)
    phase: RunPhase = RunPhase.STARTING
    awaited: Awaited | None = None
    begun: bool = True
    ahead: int = 0
    started: float = 0.0
    ended: float = 0.0
    epoch: int = 0
    epochs: int = 0
    step: int = 0
    steps: int = 0
    stage: str = "train"
    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    earlier: dict[int, dict[int, dict[str, float]]] = field(default_factory=dict)
    fit: int = 0
    generation: int = 0
    restarts: int = 0
    replaying: bool = False
    epochs_done: list[int] = field(default_factory=list)
    planned: int = 0
    counted: int = 0
    feeds: dict[str, FeedState] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    error: str = ""
    log_dir: str = ""
    clock: Callable[[], float] = time.monotonic
    traces: dict[str, MetricSeries] = field(default_factory=dict)
    pace: MetricSeries = field(default_factory=MetricSeries)
    printed: int = 0
    returned: int = 0
    returning: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    _times: Stopwatch = field(init=False, repr=False)
    _first: tuple[float, float] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._times = Stopwatch("start", self.started)

    def __repr__(self) -> str:
        epochs = self.planned if self.history else self.epochs
        return f"<state of {self.name}: {self.phase.value}, {len(self.history)} of {epochs} epochs>"

    def begin(self) -> None:
        """The run's turn has come: time counts from here."""
        self.phase, self.begun, self.started = RunPhase.STARTING, True, self.clock()
        self._times = Stopwatch("start", self.started)

    def queue(self) -> None:
        """The run waits for its turn."""
        self.phase, self.begun = RunPhase.QUEUED, False

    def wait_for(self, what: str, until: float = math.inf, ago: float = 0.0) -> None:
        """The run waits for ``what``, since ``ago`` seconds, until ``until`` at most; for nothing where it is empty."""
        self.awaited = Awaited(what, self.clock() - ago, until).after(self.awaited) if what else None

    def resize(self, workers: int) -> None:
        """So many workers have the run."""
        if workers != len(self.workers):
            self.workers = [WorkerState(rank) for rank in range(workers)]

    @property
    def elapsed(self) -> float:
        """Seconds since the cell was started, up to its end."""
        return (self.ended or self.clock()) - self.started

    @property
    def times(self) -> dict[str, float]:
        """Seconds of ``elapsed`` by what rank 0 did: ``start`` (feeds included), ``cell``, ``train``, ``validate``,
        ``checkpoint``."""
        return self._times.read(self.ended or self.clock())

    @property
    def remaining(self) -> float | None:
        """Seconds to the end at the pace since the first step, its own time left out; None while nothing says."""
        if self._first is None or self.phase is not RunPhase.RUNNING:
            return None
        then, before = self._first
        done, took = self.fraction - before, self.clock() - then
        return took * (1.0 - self.fraction) / done if done > 0.005 and took > 0 else None

    def enter(self, activity: str) -> None:
        """From now on it is ``activity`` that takes the run's time."""
        self._times.switch(activity, self.clock())

    def begin_estimate(self) -> None:
        """Judge the time that remains from here on."""
        self._first = (self.clock(), self.fraction)

    @property
    def estimating(self) -> bool:
        return self._first is not None and self._first[1] <= self.fraction

    @property
    def rows_per_second(self) -> float:
        return sum(worker.rows_per_second for worker in self.workers)

    @property
    def fits(self) -> dict[int, dict[int, dict[str, float]]]:
        """The metrics of all fits, in their order: by number and epoch."""
        return {**self.earlier, self.fit: dict(zip(self.epochs_done, self.history, strict=True))}

    @property
    def sent_per_epoch(self) -> float:
        """Bytes that all workers together sent in an epoch of this attempt, on the average; 0 before there is one."""
        return sum(worker.sent for worker in self.workers) / self.counted if self.counted else 0.0

    @property
    def fraction(self) -> float:
        """Share of all epochs that is done, 0 to 1; 0 while the number of epochs or steps is unknown."""
        if self.phase is RunPhase.DONE:
            return 1.0
        if not self.epochs:
            return 0.0
        within = min(1.0, self.step / self.steps) if self.steps else 0.0
        return min(1.0, (self.trained + (within if self.epoch >= self.trained else 0.0)) / self.epochs)

    @property
    def trained(self) -> int:
        """How many epochs had passed when the last of ``history`` ended, those before ``initial_epoch`` included."""
        return self.epochs_done[-1] + 1 if self.epochs_done else 0


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
            if rank == 0:
                state.enter("cell")
            if state.phase in (RunPhase.STARTING, RunPhase.FEEDING):
                state.phase = RunPhase.RUNNING
        case Progress():
            _progress(state, worker, message)
        case EpochEnd(rank=0):
            _epoch_end(state, message)
        case Output():
            for line in filter(str.strip, message.text.splitlines()):
                state.printed += 1
                worker.print(line, state.printed)
        case Notice():
            if message.text not in state.notices:
                state.notices.append(message.text)
        case RunFinished():
            worker.state = {"ok": "done", "stopped": "stopped"}.get(message.status, "failed")
            worker.rows_per_second = 0.0 if message.status == "error" else worker.rows_per_second


def _progress(state: RunState, worker: WorkerState, message: Progress) -> None:
    worker.state = _DOING.get(message.phase, message.phase)
    worker.mark(state.clock(), message)
    if message.rank == 0:
        state.stage, state.epoch, state.epochs = message.phase, message.epoch, message.epochs
        state.enter(message.phase)
        if message.phase == "train":
            _forget_from(state, message)
            state.step, state.steps = message.step, message.steps
            running = over_workers(state.workers, message)
            state.metrics.update(running)
            _trace(state, message, running)
        state.metrics = state.metrics or dict(*state.history[-1:])  # of a fit that was over before a restart


def _trace(state: RunState, message: Progress, metrics: dict[str, float]) -> None:
    """Draw the curves on, and begin to judge the time that remains with the first step that is done."""
    if message.step and not state.estimating:
        state.begin_estimate()
    if state.rows_per_second > 0:
        state.pace.add(state.elapsed, state.rows_per_second)
    if not message.steps:
        return
    for name, value in metrics.items():
        if math.isfinite(value):
            state.traces.setdefault(name, MetricSeries()).add(message.epoch + message.step / message.steps, value)


def _epoch_end(state: RunState, message: EpochEnd) -> None:
    if message.past and (state.replaying or message.epoch in state.fits.get(message.fit, ())):
        return  # known from the attempt before
    _forget_from(state, message)
    state.epochs = state.planned = message.epochs
    state.metrics, state.counted = dict(message.metrics), state.counted + (not message.past)
    if message.fit != state.fit:
        _turn_to(state, message.fit, message.epoch)
    state.history.append(dict(message.metrics))
    state.epochs_done.append(message.epoch)


def _turn_to(state: RunState, fit: int, epoch: int) -> None:
    """Another ``fit`` of the cell draws its own curve: one before, of which ``epoch`` is trained again, draws it on."""
    fits = state.fits
    kept = {done: metrics for done, metrics in fits.get(fit, {}).items() if done < epoch}
    state.earlier = {number: logs for number, logs in fits.items() if number < fit and logs}
    state.history[:], state.epochs_done[:], state.fit, state.replaying = kept.values(), kept, fit, False


def lose(state: RunState, rank: int) -> None:
    """A process of the run is gone: a worker, or one of the parameter servers, which are counted after them."""
    everyone = [*state.workers, *state.servers]
    if rank < len(everyone):
        everyone[rank].state, everyone[rank].rows_per_second = "lost", 0.0


def rewind(state: RunState, restarted: bool = True) -> None:
    """The run begins again, which counts where it was ``restarted``: await what the new attempt trains again."""
    state.restarts += restarted
    state.replaying = True
    state.enter("start")
    state.phase, state.step, state.metrics, state.counted = RunPhase.STARTING, 0, {}, 0
    for worker in state.workers:
        worker.state, worker.rows_per_second = "waiting", 0.0
        worker.forget_pace()


def _forget_from(state: RunState, message: Progress | EpochEnd) -> None:
    """After a restart: take back from the history what is trained again, so that no epoch is in it twice."""
    if not state.replaying or message.fit != state.fit:
        return
    state.replaying = False
    count = sum(done < message.epoch for done in state.epochs_done)
    del state.epochs_done[count:], state.history[count:]
