"""One run of one cell: wait for its turn, feed what it names, send it to every rank, follow it to its end, bring its
names back.

A run that loses a worker begins again with fresh trainers and the same seed, where its last checkpoint left it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from tfos_magic.checkpoints.store import CheckpointStore
from tfos_magic.cluster.runs.attempt import Attempt, StopAsked, await_trainers, revive, settle, take_size
from tfos_magic.cluster.runs.outcome import how_left, restart_notice
from tfos_magic.cluster.runs.random_states import Randomness
from tfos_magic.cluster.runs.request import Observer, RunRequest, await_written, open_store
from tfos_magic.cluster.runs.results import RunResults, kernels_keras
from tfos_magic.cluster.runs.run_feeds import feed_all, setting_of, uses_of
from tfos_magic.cluster.runs.state import RunPhase, apply, lose, rewind
from tfos_magic.cluster.startup import SAY_SECONDS, shown_by
from tfos_magic.cluster.trainer_group import TrainerGroup
from tfos_magic.disk.module_states import changed_states
from tfos_magic.disk.module_texts import local_sources
from tfos_magic.disk.place import tell_place
from tfos_magic.errors import RunInterrupted, WorkerError, WorkerLost
from tfos_magic.feed.driver.sources.fed_frame import SpooledFeed
from tfos_magic.storage import without_password
from tfos_magic.tensorboard.event_files import EventMirror
from tfos_magic.tensorboard.scalars import ScalarWriter
from tfos_magic.transport.messages import (
    CheckpointPart,
    Display,
    EpochEnd,
    EventFilePart,
    Message,
    Output,
    OutputPart,
    OutputTaken,
    Question,
    RunCell,
    TrainerExited,
)
from tfos_magic.values import keras_state, pack, process_state

DRAW_SECONDS = 1e-4  # between two looks at all workers, for each of them


class Execution:
    """Executes a :class:`RunRequest` on a cluster of ``size`` workers, once. ``state`` is there from the start.

    ``connect`` gives the cluster, its agents running, to the run with that id; it is called when the run has its turn,
    so that the start of a cluster is part of the run.
    """

    _cluster: TrainerGroup

    def __init__(self, request: RunRequest, size: int, connect: Callable[[str], TrainerGroup]) -> None:
        self.run_id = uuid4().hex[:12]
        self.request, self._connect = request, connect
        # As the names are now: the notebook may change them while the run waits.
        self._payload = pack(request.names) if request.payload is None else request.payload
        self._randomness = Randomness(request)
        # Of the thread that asks for the run, which may be executed in another.
        self._names = keras_state.names()
        self._notebook = process_state.of_notebook(dict(self._names))
        self._module_states, unsent = changed_states()
        self._scalars = ScalarWriter(request.log_dir) if request.log_dir else None
        self._store: CheckpointStore | None = None
        self._stops, self._pending_notices, self._draw_at = SimpleQueue[None](), SimpleQueue[str](), 0.0
        self.state = request.first_state(self.run_id, size, unsent)
        self._mirror = EventMirror(self.state, request.private_logs)
        self._results = RunResults(self.state, request)

    def execute(self, observer: Observer, await_turn: Callable[[Callable[[], None]], None]) -> dict[str, Any]:
        """Run to the end, once it has its turn, and give the names asked back, by name and rank where ranks run alone.

        Raises what the cell raised as :class:`WorkerError`, :class:`WorkerLost` when a worker was lost and no restart
        is left, what the feed raised, and :class:`RunInterrupted` after an interrupt; in each case the cluster can run
        another cell.
        """
        self._observer = observer
        try:
            await_turn(self._wait)
            self._update()
            self.state.begin()
            self._observer.update(self.state)
            with shown_by(self._update, self.state.wait_for):
                self._open_store()
                self._cluster = self._connect(self.run_id)
            self.state.resize(self._cluster.size)  # which a run before may have changed
            self.state.notices += self._cluster.notices
            self._cluster.notices = []
            self._persevere()
            self._close_store()
            with self._ending(RunPhase.DONE):
                return self._results.values()
        except (KeyboardInterrupt, StopAsked):
            with self._ending(RunPhase.STOPPED):
                raise RunInterrupted(*self._results.rescue(), how_left(getattr(self, "_cluster", None))) from None
        except BaseException as error:
            with self._ending(RunPhase.FAILED, str(error)):
                self._results.rescue_with(error)
            raise
        finally:
            self._close_store()
            left, meanwhile = self._results.left, self.request.detached
            self._randomness.give_back(left.random)
            keras_state.go_on(self._names, left.names_given, meanwhile=meanwhile)
            process_state.go_on(left, meanwhile=meanwhile)
            if self._scalars is not None:
                self._scalars.close()

    def stop(self) -> None:
        """End the run at the next step, as an interrupt does, and when called again at once; from any thread.

        A run that waits for its turn never begins; a cluster that is being started for it ends.
        """
        self._stops.put(None)

    def _wait(self) -> None:
        self.state.queue()
        self._update()

    def _open_store(self) -> None:
        """Find out now whether checkpoints can be kept, and take the seed of a run that goes on."""
        self._store = open_store(self.request, self._pending_notices.put)
        if self._store is None:
            return
        self._take_notices()
        self._randomness.go_on(self._store.seed, self._store.random)
        self.state.notices += self._store.notices

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await_written(store.close)
        self._take_notices()

    def _persevere(self) -> None:
        """Attempt the run until it ends by itself, or more workers were lost than it has restarts."""
        while True:
            try:
                if not self._attempt():
                    return
                rewind(self.state, restarted=False)
            except WorkerLost as loss:
                settle(self._cluster, self.state, self._draw)
                if self.request.alone or (loss.short_of_memory and self._cluster.of_item):
                    raise
                self._prepare_restart(loss)

    def _attempt(self) -> bool:
        """Feed what the cell names and run it once on every rank that is to; True where it is to be attempted anew."""
        revive(self._cluster, self.state, self._draw)
        take_size(self._cluster, self.state)
        if self._scalars is not None:
            self._scalars.await_rewind()
        ranks = self.request.ranks_of(self._cluster.size)
        spooled = self._cluster.feeds
        assert spooled is not None
        streams = spooled.streams
        try:
            before = self._store.feeds if self._store is not None else {}
            feeds = feed_all(self._cluster, self.request.frames, self.state, self._draw, before)
            return not await_trainers(self._cluster, self.state, self._draw) or self._run_cell(feeds, ranks)
        except WorkerError:
            if streams.failure is None:
                raise
            raise streams.failure from None  # which is why the cell found no rows
        finally:
            streams.end()
            spooled.in_use.end(self.run_id)

    def _run_cell(self, feeds: Mapping[str, SpooledFeed], ranks: Sequence[int]) -> bool:
        request = self.request
        assert self._cluster.feeds is not None
        attempt = Attempt(
            self._cluster,
            self.run_id,
            self._take,
            ranks=ranks,
            elastic=request.strategy == "async",
            replacements=request.max_restarts - self.state.restarts,
            alone=request.strategy == "none",
            boundary=request.boundary,
        )
        try:
            self._send(attempt, feeds)
            attempt.follow(self.state.workers)
            return attempt.outcome.left
        except (KeyboardInterrupt, StopAsked):
            self.state.phase = RunPhase.STOPPING
            attempt.stop(self.state.notices.append, self._cluster.feeds.streams.end_queries)
            raise
        finally:
            attempt.close()
            self._results.note(attempt.outcome.ends)

    def _prepare_restart(self, loss: WorkerLost) -> None:
        """Count a restart and say so; raises the loss with what to do where none is left."""
        request, state = self.request, self.state
        if state.restarts >= request.max_restarts:
            raise loss.without_restarts(request.max_restarts, without_password(request.checkpoint_dir)) from None
        rewind(state)
        newest = await_written(self._store.written) if self._store is not None else None
        state.notices.append(restart_notice(loss, state, newest.words if newest else "", request.max_restarts))
        self._draw()

    def _send(self, attempt: Attempt, feeds: Mapping[str, SpooledFeed]) -> None:
        request = self.request
        setting = setting_of(self._cluster, request, feeds)
        cell = RunCell(
            run_id=self.run_id,
            source=request.source,
            filename=request.filename,
            strategy=request.strategy,
            options=request.options,
            seed=self._randomness.seed,
            random=self._randomness.states,
            outputs=list(request.outputs),
            feeds=uses_of(self._cluster, request, feeds, self._randomness.seed),
            modules=dict(request.modules),
            checkpoints=request.checkpoint_plan | {"setting": setting.meta()},
            event_files=self._mirror.has_place,
            keras=kernels_keras(),
            notebook=self._notebook,
            place=tell_place((request.private_files or self._cluster.private_files)()),
            sources=local_sources(request.source),
            module_states=self._module_states,
            asks=request.answer is not None,
            payload=self._payload + request.item,
        )
        for part in self._store.parts(self.run_id, setting) if self._store is not None else ():
            self._cluster.tell(0, part)
        attempt.send(cell)

    def _take(self, message: Message | None) -> None:
        """Fold what a worker said into the run; None when nobody said anything for a moment."""
        if isinstance(message, TrainerExited):
            lose(self.state, message.rank)
        if message is not None and getattr(message, "run_id", "") == self.run_id:
            apply(self.state, message)
            match message:
                case Output() if self._shown(message.rank):
                    self._observer.output(message.text, message.stream, message.rank)
                case Display() if self._shown(message.rank):
                    self._observer.show(message.data, message.metadata, message.rank)
                case CheckpointPart(rank=0) if self._store is not None:
                    self._store.note(message)
                case OutputPart():
                    self._results.take(message)
                    self._cluster.tell(message.rank, OutputTaken(self.run_id))
                case Question():
                    self._cluster.tell(message.rank, self.request.answered(message))
                case EventFilePart(rank=0):
                    self._mirror.take(message)
                case EpochEnd(rank=0) if self._scalars is not None:
                    self._scalars.take(message)
        if message is None or time.monotonic() >= self._draw_at:
            assert self._cluster.feeds is not None
            self.state.notices += self._cluster.feeds.streams.check()
            self.state.wait_for(self._cluster.membership.silence(), ago=SAY_SECONDS)
            self._draw()

    def _shown(self, rank: int) -> bool:
        return rank == 0 or self.request.alone

    def _take_notices(self) -> None:
        """What the thread that writes checkpoints has to say: the run's own thread alone changes its state."""
        while not self._pending_notices.empty():
            self.state.notices.append(self._pending_notices.get())

    def _draw(self) -> None:
        everyone = [*self.state.workers, *self.state.servers]
        self._draw_at = time.monotonic() + DRAW_SECONDS * len(everyone)
        self._take_notices()
        for state, worker in zip(everyone, self._cluster.membership.members, strict=False):
            state.memory = worker.beat.trainer_rss
        self._update()

    def _update(self) -> None:
        self._observer.update(self.state)
        if not self._stops.empty():
            self._stops.get()
            raise StopAsked

    @contextmanager
    def _ending(self, phase: RunPhase, error: str = "") -> Iterator[None]:
        """The run is over when the block is, in which names come back."""
        try:
            yield
        finally:
            if not self.state.phase.ended:
                self.state.phase, self.state.error = phase, error.split("\n", 1)[0]
                self.state.ended = time.monotonic()
                self._observer.update(self.state)
