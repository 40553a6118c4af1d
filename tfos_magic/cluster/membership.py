"""Who is in a cluster and what they have said: agents as they register, trainers as they load, their last words.

The control thread writes here, everybody else reads and waits; one condition variable guards it all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import NoReturn

from tfos_magic.cluster.startup import wait_until
from tfos_magic.cluster.workers import ClusterPhase, ClusterStatus, Worker, describe_exit, rank_workers, status_of
from tfos_magic.errors import ClusterError, ExecutorError, StartTimeout, WorkerLost
from tfos_magic.transport.agent_config import HEARTBEAT_TIMEOUT
from tfos_magic.transport.control_server import job_of
from tfos_magic.transport.messages import (
    AgentEnded,
    AgentFailed,
    Heartbeat,
    Message,
    Output,
    Register,
    TrainerExited,
    TrainerReady,
)

SETTLE_SECONDS, PAUSE_SECONDS = 0.5, 3.0
OUTPUT_LINES = 10


class Membership:
    """The ``size`` members of a cluster, the last ``servers`` of them parameter servers, and its phase.

    Each fills a slot, and its slot is its rank. ``stale`` trainers must be spawned anew. ``lost`` says why agents are
    missing, who are replaced then by those of other Spark jobs; the others stay. An agent is taken for lost when it is
    silent for ``heartbeat_timeout`` seconds.
    """

    def __init__(self, size: int, heartbeat_timeout: float = HEARTBEAT_TIMEOUT, *, servers: int = 0) -> None:
        self.size = size
        self._servers = servers
        self.heartbeat_timeout = heartbeat_timeout
        self.phase = ClusterPhase.STARTING
        self.reason = ""
        self.generation = 0
        self.stale = False
        self.lost = ""
        self.members: list[Worker] = []
        self._jobs: dict[int, str] = {}
        self._awaited: set[int] = set()
        self._missing: set[int] = set()
        self._arrived: dict[int, tuple[bytes, Register]] = {}
        self._fallen: tuple[Worker, TrainerExited] | None = None
        self._checked = time.monotonic()
        self._changed = threading.Condition(threading.RLock())

    @property
    def workers(self) -> list[Worker]:
        """The workers by rank; empty until all agents are there."""
        return self.members[: self.size - self._servers]

    @property
    def servers(self) -> list[Worker]:
        """The parameter servers, whose ranks follow those of the workers."""
        return self.members[self.size - self._servers :]

    @property
    def lock(self) -> threading.Condition:
        """Hold it to read several things that must belong together."""
        return self._changed

    @property
    def peers(self) -> list[bytes]:
        """Every agent that has registered."""
        return [peer for peer, _ in self._arrived.values()]

    @property
    def ready(self) -> bool:
        """True when a cell can run at once."""
        idle = self.phase is ClusterPhase.RUNNING and not self.stale and not self.lost
        return idle and all(worker.ready for worker in self.members)

    def stray(self, peer: bytes) -> bool:
        """True for an agent that has no place here: one too many, or of a job that was given up."""
        return peer not in self.peers and self.slot_of(job_of(peer)) not in self._awaited

    def slot_of(self, job: str) -> int | None:
        """The slot that a job is to fill; None for one that was given up."""
        return next((slot for slot, known in self._jobs.items() if known == job), None)

    def awaits(self, slot: int) -> bool:
        """Whether the agent of a slot has yet to come, or others with it."""
        return slot in self._awaited

    def note(self, peer: bytes, message: Message) -> Worker | None:
        """Take in one message; gives the worker it came from, once there is one."""
        with self._changed:
            self._changed.notify_all()
            if isinstance(message, Register):
                self._arrive(peer, message)
            elif isinstance(message, AgentFailed) and self.slot_of(job_of(peer)) in self._awaited:
                self.fail(message.reason)
            worker = next((worker for worker in self.members if worker.peer == peer), None)
            if worker is not None:
                self._note_worker(worker, message)
            elif isinstance(message, AgentEnded):
                self._arrived = {slot: agent for slot, agent in self._arrived.items() if agent[0] != peer}
            return worker

    def _arrive(self, peer: bytes, message: Register) -> None:
        slot = message.slot
        if not message.job == self._jobs.get(slot) == job_of(peer):
            return
        if slot in self._awaited:
            self._arrived[slot] = (peer, message)
        elif peer not in self.peers:
            # Spark runs a task again when its executor is lost.
            self.lose("Spark began its task anew", slot)

    def _note_worker(self, worker: Worker, message: Message) -> None:
        worker.seen = time.monotonic()
        match message:
            case Heartbeat():
                worker.beat = message
            case TrainerReady() if message.generation == self.generation:
                worker.ready = message
            case TrainerExited() if message.generation == self.generation:
                self.stale, self._fallen = True, self._fallen or (worker, message)
                if worker.ready and not worker.ready.error:
                    worker.ready = None
            case AgentEnded():
                worker.farewell = message.reason
                self.lose(f"its agent ended: {message.reason}", worker.rank)
            case Output():
                worker.note_output(message.text)

    def gather(self, jobs: Mapping[int, str]) -> list[bytes]:
        """Await the agents of ``jobs``, by slot; gives those that there were in these slots, which count no more."""
        with self._changed:
            before = [self._arrived.pop(slot)[0] for slot in jobs if slot in self._arrived]
            self._jobs.update(jobs)
            self._awaited.update(jobs)
            self._missing.difference_update(jobs)
            return before

    def give_up(self, slots: Collection[int]) -> None:
        """Await the agents of these slots no longer: they are missing still."""
        with self._changed:
            self._awaited.difference_update(slots)
            self._missing.update(slots)

    def lose(self, reason: str, slot: int) -> None:
        """The agent of a slot is missing; nothing happens unless it was there."""
        with self._changed:
            if self.phase is ClusterPhase.RUNNING and slot not in self._awaited:
                self._missing.add(slot)
                self.lost = self.lost or f"worker {slot} on {self.members[slot].agent.host}: {reason}"
            self._changed.notify_all()

    def missing(self) -> list[int]:
        """The slots whose agents are lost. Waits a little: an executor may take several with it."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._missing) == self.size, SETTLE_SECONDS)
            return sorted(self._missing)

    def fail(self, reason: str) -> None:
        """The cluster is lost, unless it has ended already."""
        with self._changed:
            if not self.phase.ended:
                self.phase, self.reason = ClusterPhase.FAILED, reason
            self._changed.notify_all()

    def end(self) -> None:
        """The cluster was stopped on purpose, unless it had failed before."""
        with self._changed:
            if not self.phase.ended:
                self.phase = ClusterPhase.STOPPED
            self._changed.notify_all()

    def check(self, kind: type[ClusterError] = ClusterError) -> None:
        """Raise ``kind`` when the cluster has ended, saying why."""
        with self._changed:
            if self.phase is ClusterPhase.FAILED:
                raise kind(self.reason)
            if self.phase is ClusterPhase.STOPPED:
                raise kind("This cluster was stopped: start one with %tfos start.")

    def check_agents(self) -> None:
        """Raise :class:`WorkerLost` when an agent was lost or does not answer any more."""
        with self._changed:
            self._note_silence()
            if self.lost:
                self._raise_lost()

    def await_loss(self, seconds: float) -> None:
        """Raise :class:`WorkerLost` as soon as an agent is known to be lost; return when none is after ``seconds``."""
        with self._changed:
            if self._changed.wait_for(lambda: bool(self.lost), seconds):
                self._raise_lost()

    def _note_silence(self) -> None:
        now = time.monotonic()
        # Where nobody looked for a while, this process may have been suspended, with messages waiting to be read.
        paused, self._checked = now - self._checked > PAUSE_SECONDS, now
        for worker in self.members:
            if paused:
                worker.seen = now
            elif now - worker.seen > self.heartbeat_timeout:
                self.lose("it is out of reach", worker.rank)

    def _raise_lost(self) -> NoReturn:
        """Name the agent that was silent first, and of those that said why they ended none before the others."""
        missing = [self.members[slot] for slot in self._missing | self._awaited]  # others may be replacing it already
        worker = min(missing, key=lambda worker: (bool(worker.farewell), worker.seen))
        silent = time.monotonic() - worker.seen
        if silent > self.heartbeat_timeout:
            how = f"did not answer for {silent:.0f} s"
        elif worker.farewell:
            how = f"was ended from outside ({self.lost})"
        else:
            how = "was lost, its executor or the Spark task in it having died"
        raise WorkerLost(worker.rank, worker.agent.host, how, output="\n".join(list(worker.log)[-OUTPUT_LINES:]))

    def await_agents(self, timeout: float, endpoint: str) -> None:
        """Wait for the agents that are to come and give all their ranks."""
        wait_until(self._changed, self._complete, timeout, lambda: f"agents: {len(self._arrived)} of {self.size}")
        with self._changed:
            self.check(ExecutorError)
            if len(self._arrived) < self.size:
                raise StartTimeout(
                    f"{len(self._arrived)} of {self.size} workers came up within {timeout:.0f} s. Spark has not "
                    f"started the other tasks, for they need {self.size} free slots at once and feeding one more, or "
                    f"they cannot reach {endpoint}: see the executors' logs, set %config TFOS.driver_host to an "
                    "address they reach, or give more --start-timeout."
                )
            logs = {worker.rank: worker.log for worker in self.members}
            self.members = rank_workers(list(self._arrived.values()), self._servers)
            for worker in self.members:
                worker.log = logs.get(worker.rank, worker.log)
            self._awaited.clear()
            self.lost = self.lost if self._missing else ""
            self.phase = ClusterPhase.RUNNING

    def begin_generation(self) -> int:
        """Forget the trainers there were; gives the new generation's number."""
        with self._changed:
            self.generation, self.stale, self._fallen = self.generation + 1, False, None
            for worker in self.members:
                worker.ready = None
            return self.generation

    def await_trainers(self, timeout: float) -> None:
        """Wait until every trainer of this generation has TensorFlow loaded."""
        wait_until(self._changed, self._settled, timeout, self._loaded)
        with self._changed:
            self.check()
            self.check_agents()
            for worker in self.members:
                if worker.ready and worker.ready.error:
                    self.stale = True
                    raise ClusterError(f"Worker {worker.rank} on {worker.agent.host}: {worker.ready.error}")
            if self._fallen is not None:
                raise _died_loading(*self._fallen)
            if loading := [str(worker.rank) for worker in self.members if worker.ready is None]:
                who = f"Worker {', '.join(loading)} did not have TensorFlow loaded within {timeout:.0f} s"
                raise StartTimeout(f"{who}: see %tfos logs, or give more --start-timeout.")

    def status(self, master: str) -> ClusterStatus:
        """The cluster and its workers as they are now; ``master`` is where Spark is."""
        with self._changed:
            first = next((worker.ready for worker in self.members if worker.ready), None)
            return ClusterStatus(
                phase=self.phase.value,
                master=master,
                generation=self.generation,
                workers=tuple(status_of(worker) for worker in self.members),
                tensorflow=first.versions.get("tensorflow", "") if first else "",
                keras=first.versions.get("keras", "") if first else "",
                reason=self.reason if self.phase is ClusterPhase.FAILED else self.lost,
            )

    def _complete(self) -> bool:
        return len(self._arrived) >= self.size or self.phase.ended

    def _loaded(self) -> str:
        return f"TensorFlow: {sum(worker.ready is not None for worker in self.members)} of {len(self.members)} workers"

    def _settled(self) -> bool:
        failed = any(worker.ready and worker.ready.error for worker in self.members)
        if failed or self.stale or self.phase.ended or all(worker.ready for worker in self.members):
            return True
        self.check_agents()
        return False


def _died_loading(worker: Worker, exited: TrainerExited) -> WorkerLost:
    tail = "\n".join(exited.output.splitlines()[-OUTPUT_LINES:])
    return WorkerLost(worker.rank, worker.agent.host, f"{describe_exit(exited)} while it was starting", output=tail)
