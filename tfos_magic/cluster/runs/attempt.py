"""One attempt at a run: a cell sent to the trainers of one generation, and followed until all of them have ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from tfos_magic.cluster.runs.outcome import INTERRUPT_WAITS, Outcome
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.cluster.runs.worker_state import WorkerState
from tfos_magic.cluster.startup import shown_by
from tfos_magic.cluster.trainer_group import TrainerGroup
from tfos_magic.errors import StartTimeout, WorkerLost
from tfos_magic.transport.messages import (
    Message,
    Output,
    OutputPart,
    Progress,
    RunCell,
    RunFinished,
    RunStarted,
    StopRun,
    TrainerExited,
    TrainerReady,
)

log = logging.getLogger("tfos_magic.cluster")

TICK, QUIET_SECONDS, STOP_GRACE = 0.1, 3.0, 600.0
ERROR_GRACE, REFUSAL_GRACE, CAUSE_GRACE, OUTPUT_GRACE = 10.0, 30.0, 1.0, 10.0


class StopAsked(Exception):
    """Another thread wants the run to end, as an interrupt does."""


class Inbox:
    """Messages in their order. Of progress that nobody has looked at, a later one of the same rank takes the place, so
    that who is slow to look does not fall behind; none overtakes another message of its rank."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[Message]] = SimpleQueue()
        self._latest: dict[int, list[Message]] = {}

    def put(self, rank: int, message: Message) -> None:
        """To be called in one thread."""
        latest = self._latest.get(rank) if isinstance(message, Progress) else None
        if latest:
            try:
                latest[0] = message
                return
            except IndexError:
                pass
        self._queue.put(made := [message])
        self._latest[rank] = made if isinstance(message, Progress) else []

    def get(self, timeout: float) -> Message:
        """Wait for the next; raises :class:`queue.Empty` after ``timeout`` seconds."""
        return self._queue.get(timeout=timeout).pop()


class Attempt:
    """Hears the workers from when it is made to when it is closed; what they say goes to ``take``, in :meth:`follow`.

    The cell runs on the workers of ``ranks``, where that is given. An ``elastic`` run does not end with a worker that
    is lost, unless that is rank 0: at most ``replacements`` are put in the place of lost ones. Workers that run it
    ``alone`` do not end with one another.

    Where the cluster is wanted in another size, workers leave at the next ``boundary``, a ``step`` or the end of an
    ``epoch``; not where that is empty.

    Made when the trainers are ready, so that nothing of an earlier generation is heard. ``take(None)`` is called when
    nothing was said for a while.
    """

    def __init__(
        self,
        cluster: TrainerGroup,
        run_id: str,
        take: Callable[[Message | None], None],
        *,
        ranks: Sequence[int] | None = None,
        elastic: bool = False,
        replacements: int = 0,
        alone: bool = False,
        boundary: str = "",
    ) -> None:
        self._boundary = boundary
        self._ranks = range(cluster.size) if ranks is None else ranks
        self.outcome = Outcome(cluster.size, ranks=self._ranks, elastic=elastic, alone=alone)
        self._cluster, self._run_id, self._take = cluster, run_id, take
        self._inbox = Inbox()
        self._generation = cluster.membership.generation
        self._cell: RunCell | None = None
        self._sent = False
        self._replacements = replacements if elastic else 0
        self._coming: set[int] = set()
        self._abandoned, self._check_at, self._started = False, 0.0, False
        self._impostors: set[int] = set()
        cluster.listen(self._hear)

    def send(self, cell: RunCell) -> None:
        """Send the cell to every rank that is to run it."""
        self._cell = cell
        for rank in self._ranks:
            self._cluster.tell(rank, cell)
        self._sent = True

    def follow(self, workers: Sequence[WorkerState]) -> None:
        """Return when every rank has ended the cell well; raises what ended it otherwise."""
        self._pump(lambda: self.outcome.complete or self.outcome.broken, None)
        if not self.outcome.reusable:
            self._ask_to_stop()
            self._await_ends(REFUSAL_GRACE if self.outcome.refused else CAUSE_GRACE)
            if self.outcome.failed and not self.outcome.complete:  # they wait for one that takes no step any more
                self._ask_to_stop(abandon=True)
            self._await_ends(ERROR_GRACE)
            self._await_certainty()
        # Those who waited for a lost trainer may be heard before its agent, which tells of the loss.
        self._pump(lambda: not self.outcome.unexplained, time.monotonic() + CAUSE_GRACE)
        self.outcome.raise_error(workers)

    def stop(self, notify: Callable[[str], None], end_data: Callable[[], None]) -> None:
        """Ask all ranks to end at their next common step, or where they are, and wait; ``notify`` is told of that.

        ``end_data`` ends data that may not give a row for long; what waits for it comes to a step by that.
        """
        if not self._sent:  # ranks without the cell will not say how it ended, and those with it wait for them
            self.close()
            return
        try:
            self._ask_to_stop()
            end_data()
            self._await_ends(QUIET_SECONDS)
            if not self.outcome.complete:
                notify(INTERRUPT_WAITS)
                self._pump(lambda: self.outcome.complete or self.outcome.failed, time.monotonic() + STOP_GRACE)
                self._await_ends(ERROR_GRACE)
        except (KeyboardInterrupt, StopAsked, WorkerLost):
            # A second interrupt: no more patience. What was lost is found again by the next run.
            self.close()

    def close(self) -> None:
        """Hear no more; replace the trainers where one of them may still run the cell, which nobody follows now."""
        self._cluster.listen(None)
        membership = self._cluster.membership
        if (
            self._cell
            and self._generation == membership.generation
            and not self.outcome.reusable
            and not membership.lost
            and not membership.phase.ended
        ):
            self._cluster.spawn_trainers()

    def _hear(self, rank: int, message: Message) -> None:
        """Take what the worker with ``rank`` says of this run: in its own name, for what it says of another is dropped.

        What comes late, of a run or generation before, is not for this one.
        """
        of_run = getattr(message, "run_id", self._run_id) == self._run_id
        if not of_run or getattr(message, "generation", self._generation) != self._generation:
            return
        if getattr(message, "rank", rank) == rank:
            self._inbox.put(rank, message)
        elif rank not in self._impostors:
            self._impostors.add(rank)
            kind = type(message).__name__
            log.warning("dropped a %s that worker %d sent as another; further ones are not logged", kind, rank)

    def _ask_to_stop(self, abandon: bool = False) -> None:
        self._abandoned = abandon
        for rank in self._ranks:
            self._cluster.tell(rank, StopRun(self._run_id, abandon))
        self._take(None)

    def _await_ends(self, seconds: float) -> None:
        self._pump(lambda: self.outcome.complete, time.monotonic() + seconds)

    def _await_certainty(self) -> None:
        """Wait for those that say nothing at all: to be heard again, or lost. What is lost is to cost one restart."""
        membership = self._cluster.membership

        def silent() -> bool:
            return bool(self.outcome.open & {worker.rank for worker in membership.silent(QUIET_SECONDS)})

        if silent():
            self._pump(lambda: not silent(), time.monotonic() + membership.heartbeat_timeout)
            self._await_ends(ERROR_GRACE)

    def _pump(self, done: Callable[[], bool], deadline: float | None) -> None:
        while not done():
            if deadline is not None and time.monotonic() > deadline:
                return
            self._check()
            try:
                message = self._inbox.get(timeout=TICK)
            except Empty:
                self._take(None)
            else:
                self._note(message)
                if not (self._abandoned and isinstance(message, Output) and message.stream == "stderr"):
                    self._take(message)  # else TensorFlow's own words on what did not come any more
                if deadline is not None and isinstance(message, OutputPart):
                    deadline = max(deadline, time.monotonic() + OUTPUT_GRACE)

    def _check(self) -> None:
        """See that the cluster and its agents are there, now and then: that looks at all of them."""
        if (now := time.monotonic()) >= self._check_at:
            self._check_at = now + TICK
            self._cluster.membership.check()
            self._cluster.membership.check_agents()
            if self._boundary and self._started and self._cluster.wanted not in (None, self._cluster.size):
                self._ask_to_leave()

    def _ask_to_leave(self) -> None:
        boundary, self._boundary = self._boundary, ""
        self.outcome.leaving = True
        for rank in self._ranks:
            self._cluster.tell(rank, StopRun(self._run_id, leave=boundary))

    def _note(self, message: Message) -> None:
        match message:
            case RunStarted():
                self._started = True
            case RunFinished() if message.run_id == self._run_id:
                self.outcome.finished(message)
            case TrainerExited() if message.generation == self._generation:
                self.outcome.lost(message)
                self._replace(message.rank)
            case TrainerReady() if message.generation == self._generation and message.rank in self._coming:
                self._coming.remove(message.rank)
                if self._cell is not None and not message.error:
                    self._cluster.tell(message.rank, self._cell)

    def _replace(self, rank: int) -> None:
        """Put another trainer in the place of a lost one, where the others go on; it begins when it is ready."""
        if self._replacements < 1 or self.outcome.broken or self.outcome.complete:
            return
        self._replacements -= 1
        self._coming.add(rank)
        self._cluster.replace_trainer(rank)


def settle(cluster: TrainerGroup, state: RunState, draw: Callable[[], None]) -> None:
    """See that the Spark session is of use, drawing what is waited for meanwhile."""
    with shown_by(draw, state.wait_for):
        cluster.settle()
    state.wait_for("")


def revive(cluster: TrainerGroup, state: RunState, draw: Callable[[], None]) -> None:
    """Replace agents that were lost, in the attempt before or while nothing ran."""
    settle(cluster, state, draw)
    lost = cluster.membership.lost
    if not lost:
        return
    if not state.replaying:
        state.notices.append(f"The cluster had lost workers between runs ({lost}): they are being restarted.")
    draw()
    try:
        with shown_by(draw, state.wait_for):
            cluster.revive()
    except StartTimeout as error:
        raise StartTimeout(
            f"The cluster had lost {lost}, and could not replace what it lost. {error} A run with --checkpoint-dir "
            "goes on with --resume."
        ) from None


def take_size(cluster: TrainerGroup, state: RunState) -> None:
    """Take up the size that the cluster is wanted in, and say so where the run has another from here on."""
    if said := cluster.take_size():
        state.notices.append(said)
    if cluster.size != len(state.workers):
        state.notices.append(f"{cluster.size} worker{'s' * (cluster.size > 1)} from here on.")
    state.resize(cluster.size)


def await_trainers(cluster: TrainerGroup, state: RunState, draw: Callable[[], None]) -> bool:
    """Wait for trainers that still load TensorFlow, drawing meanwhile; ``state`` gets to know who they are.

    False where the cluster has lost workers meanwhile and goes on without them, so that all is to be fed again.
    """
    if not cluster.ready:
        draw()
        cluster.wait_ready()
    if cluster.size != len(state.workers):
        return False
    state.generation = cluster.membership.generation
    for known, worker in zip(state.workers, cluster.workers, strict=True):
        known.host, known.pid = worker.agent.host, worker.pid
        known.device = worker.ready.device if worker.ready else ""
    state.servers = [WorkerState(each.rank, each.agent.host, each.pid, state="serving") for each in cluster.servers]
    return True
