"""One run of one cell: feed what it names, send it to every rank, follow it to its end, bring its names back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol
from uuid import uuid4

import cloudpickle

from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.feeds import Feed, FeedJobThread
from tfos_magic.cluster.outcome import Outcome
from tfos_magic.cluster.quiet import quiet_tensorflow
from tfos_magic.cluster.scalars import ScalarWriter
from tfos_magic.cluster.state import FeedState, RunPhase, RunState, WorkerState, apply
from tfos_magic.errors import CaptureError, ClusterError, DataError, RunInterrupted
from tfos_magic.protocol import EpochEnd, Message, Output, RunCell, RunFinished, StopRun, TrainerExited
from tfos_magic.records.columns import FeedPlan, plan_feed

TICK = 0.1
STOP_GRACE = 1.4
ERROR_GRACE = 3.0
SILENCE = 20.0


class Observer(Protocol):
    """Who watches a run: called in the thread that executes it, as often as something happened."""

    def update(self, state: RunState) -> None: ...

    def output(self, text: str, stream: str) -> None: ...


class Ignore:
    """An observer that looks away."""

    def update(self, state: RunState) -> None:
        """Do nothing."""

    def output(self, text: str, stream: str) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class FrameUse:
    """A DataFrame that the cell gets as a dataset. ``features`` None means all columns but the label."""

    frame: Any
    plan: FeedPlan
    features: Sequence[str] | None = None
    label: str | None = None


def frame_use(name: str, frame: Any, features: Sequence[str] | None, label: str | None) -> FrameUse:
    """Plan how a DataFrame is fed. Raises :class:`DataError` naming it when it cannot be fed as asked."""
    try:
        return FrameUse(frame, plan_feed(frame.schema, features, label), features, label)
    except DataError as error:
        raise DataError(f"DataFrame {name!r}: {error}") from None


@dataclass(frozen=True)
class RunRequest:
    """All that a run needs. ``names`` are values to pickle, ``modules`` names bound to importable modules.

    ``options`` are the strategy's, as in :class:`~tfos_magic.protocol.RunCell`. Checkpoints go to ``checkpoint_dir`` (a
    path or URL; empty: beside the kernel, for this run's restarts alone), every ``checkpoint_every`` steps or, when 0,
    every epoch; the last ``keep_checkpoints`` stay. ``resume`` goes on from the newest one there. A run that loses a
    worker starts anew from its last checkpoint at most ``max_restarts`` times.
    """

    source: str
    name: str = "run"
    filename: str = "<tfos cell>"
    names: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[str, FrameUse] = field(default_factory=dict)
    batch_size: int = 32
    outputs: Sequence[str] = ()
    strategy: str = "sync"
    options: Mapping[str, Any] = field(default_factory=dict)
    log_dir: str = ""
    payload: bytes | None = None
    checkpoint_dir: str = ""
    checkpoint_every: int = 0
    keep_checkpoints: int = 3
    resume: bool = False
    max_restarts: int = 2


class Run:
    """Executes a :class:`RunRequest` on a cluster of ``size`` workers, once. ``state`` is there from the start.

    ``connect`` gives the cluster, its agents running; it is called first, so that the start of a cluster is part of the
    run.
    """

    def __init__(self, request: RunRequest, size: int, connect: Callable[[], TFCluster]) -> None:
        self.run_id = uuid4().hex[:12]
        self._request, self._connect = request, connect
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._outcome = Outcome(size)
        self._sent_to = 0
        self._scalars = ScalarWriter(request.log_dir) if request.log_dir else None
        self.state = RunState(
            run_id=self.run_id,
            name=request.name,
            strategy=request.strategy,
            workers=[WorkerState(rank) for rank in range(size)],
            started=time.monotonic(),
            log_dir=request.log_dir,
        )

    def execute(self, observer: Observer) -> dict[str, Any]:
        """Run to the end and give the names asked back.

        Raises what the cell raised as :class:`WorkerError`, :class:`ClusterError` when a worker was lost, what the feed
        raised, and :class:`RunInterrupted` after an interrupt; in each case the cluster can run another cell.
        """
        payload = self._request.payload
        if payload is None:
            payload = cloudpickle.dumps(dict(self._request.names))
        self._observer = observer
        self._observer.update(self.state)
        try:
            self._cluster = self._connect()
            self._cluster.listen(self._inbox.put)
            feeds = self._feed()
            self._await_trainers()
            self._send(payload, feeds)
            self._follow()
            return self._results()
        except KeyboardInterrupt:
            self._abandon()
            self._end(RunPhase.STOPPED)
            raise RunInterrupted("the run was stopped; the cluster is there for the next cell.") from None
        except BaseException as error:
            self._abandon()
            self._end(RunPhase.FAILED, str(error))
            raise
        finally:
            if hasattr(self, "_cluster"):
                self._cluster.listen(None)
            if self._scalars is not None:
                self._scalars.close()

    def _feed(self) -> dict[str, Feed]:
        """Bring every DataFrame of the cell to the spools, one after another, unless it is there."""
        self._cluster.roster.check()
        assert self._cluster.feeds is not None
        fed: dict[str, Feed] = {}
        for name, use in self._request.frames.items():
            known = self._cluster.feeds.find(use.frame, use.plan)
            if known is None:
                self.state.phase = RunPhase.FEEDING
                job = self._cluster.feeds.start(use.frame, use.plan)
                known = self._follow_feed(name, job)
                self.state.feeds[name] = FeedState(name, known.rows, known.bytes, known.seconds, done=True)
            else:
                self.state.feeds[name] = FeedState(name, known.rows, known.bytes, 0.0, done=True, reused=True)
            fed[name] = known
            self._draw()
        return fed

    def _follow_feed(self, name: str, job: FeedJobThread) -> Feed:
        started = time.monotonic()
        try:
            while not job.wait(TICK):
                self._cluster.roster.check()
                rows = sum(worker.beat.feeds.get(job.feed_id, 0) for worker in self._cluster.workers)
                self.state.feeds[name] = FeedState(name, rows, 0, time.monotonic() - started)
                self._draw()
        except BaseException:
            job.cancel()
            raise
        return job.result()

    def _await_trainers(self) -> None:
        """Wait for trainers that still load TensorFlow, drawing meanwhile."""
        if not self._cluster.ready:
            self._draw()
            self._cluster.wait_ready()
        for state, worker in zip(self.state.workers, self._cluster.workers, strict=True):
            state.host, state.pid = worker.agent.host, worker.pid
            state.device = worker.ready.device if worker.ready else ""

    def _send(self, payload: bytes, feeds: Mapping[str, Feed]) -> None:
        request = self._request
        uses = {
            name: {
                "feed_id": feeds[name].feed_id,
                "batch_size": request.batch_size,
                "features": list(use.features) if use.features is not None else None,
                "label": use.label,
            }
            for name, use in request.frames.items()
        }
        cell = RunCell(
            run_id=self.run_id,
            source=request.source,
            filename=request.filename,
            strategy=request.strategy,
            options=dict(request.options),
            seed=secrets.randbelow(2**31),
            outputs=list(request.outputs),
            feeds=uses,
            modules=dict(request.modules),
            payload=payload,
        )
        self._sent_to = self._cluster.roster.generation
        for rank in range(self._cluster.size):
            self._cluster.tell(rank, cell)

    def _follow(self) -> None:
        """Fold messages until every rank has ended, or until those that have not must be given up."""
        try:
            self._pump(lambda: self._outcome.complete or self._outcome.broken, None)
            if not self._outcome.reusable:
                self._give_others_time(ERROR_GRACE)
        except KeyboardInterrupt:
            self._stop()
            raise
        self._outcome.raise_error(self.state.workers)

    def _stop(self) -> None:
        """Ask all ranks to end at their next common step; those that cannot in time lose their trainer."""
        self.state.phase = RunPhase.STOPPING
        try:
            self._draw()
            self._give_others_time(STOP_GRACE)
        except KeyboardInterrupt:  # the second one: no more patience
            self._cluster.spawn_trainers()

    def _give_others_time(self, seconds: float) -> None:
        for rank in range(self._cluster.size):
            self._cluster.tell(rank, StopRun(self.run_id))
        self._pump(lambda: self._outcome.complete, time.monotonic() + seconds)
        if not self._outcome.reusable:
            self._cluster.spawn_trainers()

    def _pump(self, done: Callable[[], bool], deadline: float | None) -> None:
        while not done():
            if deadline is not None and time.monotonic() > deadline:
                return
            self._cluster.roster.check()
            self._check_silence()
            try:
                self._take(self._inbox.get(timeout=TICK))
            except Empty:
                self._draw()

    def _check_silence(self) -> None:
        now = time.monotonic()
        for worker in self._cluster.workers:
            if now - worker.seen > SILENCE:
                raise ClusterError(
                    f"Worker {worker.rank} on {worker.agent.host} has been silent for {SILENCE:.0f} s: its host is "
                    "overloaded or out of reach. %tfos stop --force ends the cluster; %tfos start makes a new one."
                )

    def _take(self, message: Message) -> None:
        apply(self.state, message)
        match message:
            case Output(rank=0) if message.run_id == self.run_id:
                self._observer.output(message.text, message.stream)
            case EpochEnd() if self._scalars is not None and message.run_id == self.run_id:
                self._scalars.epoch(message.epoch, message.metrics)
            case RunFinished() if message.run_id == self.run_id:
                self._outcome.finished(message)
            case TrainerExited() if message.generation == self._cluster.roster.generation:
                self._outcome.lost(message)
        self._draw()

    def _draw(self) -> None:
        for state, worker in zip(self.state.workers, self._cluster.workers, strict=False):
            state.memory = worker.beat.trainer_rss
        self._observer.update(self.state)

    def _results(self) -> dict[str, Any]:
        first = self._outcome.first
        packed: dict[str, bytes] = cloudpickle.loads(first.payload) if first.payload else {}
        self._end(RunPhase.DONE)
        with quiet_tensorflow():
            values = {name: cloudpickle.loads(data) for name, data in packed.items()}
        if first.missing:
            raise CaptureError(
                "Some of the names asked back with -o did not come: " + "; ".join(first.missing) + ".", values
            )
        return values

    def _abandon(self) -> None:
        """Leave no rank running a cell that nobody follows any more: such trainers are replaced."""
        if self._sent_to and self._sent_to == self._cluster.roster.generation and not self._outcome.reusable:
            self._cluster.spawn_trainers()

    def _end(self, phase: RunPhase, error: str = "") -> None:
        if self.state.phase.ended:
            return
        self.state.phase, self.state.error = phase, error.split("\n", 1)[0]
        self.state.ended = time.monotonic()
        self._observer.update(self.state)
