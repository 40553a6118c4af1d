"""Who is in a cluster and what they have said: agents as they register, trainers as they load, their last words.

The control thread writes here, everybody else reads and waits; one condition variable guards it all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NoReturn

from tfos_magic.cluster.arrivals import Arrivals
from tfos_magic.cluster.lifecycle import Lifecycle
from tfos_magic.cluster.workers import (
    ClusterPhase,
    ClusterStatus,
    Worker,
    death_of,
    loss_of,
    rank_workers,
    silence_of,
    status_of,
    too_few,
)
from tfos_magic.errors import ClusterError, ExecutorError, StartTimeout
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

SETTLE_SECONDS, PAUSE_SECONDS, COPY_SECONDS = 0.5, 3.0, 5.0


class Membership(Lifecycle):
    """The ``size`` members of a cluster, the last ``servers`` of them parameter servers, and its phase.

    Each fills a slot, and its slot is its rank. ``stale`` trainers must be spawned anew. ``lost`` says why agents are
    missing, who are replaced then by those of other Spark jobs; the others stay. ``refused`` says why one that is
    awaited cannot run. An agent is taken for lost when it is silent for ``heartbeat_timeout`` seconds. ``arrivals``
    tell which job fills which slot.
    """

    def __init__(self, size: int, heartbeat_timeout: float = HEARTBEAT_TIMEOUT, *, servers: int = 0) -> None:
        super().__init__()
        self.size = size
        self._servers = servers
        self.heartbeat_timeout = heartbeat_timeout
        self.generation, self.stale = 0, False
        self.lost = self.refused = ""
        self.members: Sequence[Worker] = ()
        self._by_peer: dict[bytes, Worker] = {}
        self.arrivals = Arrivals()
        self._fallen: tuple[Worker, TrainerExited] | None = None
        self._checked = time.monotonic()
        self.delay: Callable[[], float] = lambda: 0.0
        """Seconds for which nobody could be heard, where messages wait for Spark."""

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers by rank; empty until all agents are there."""
        return self.members[: self.size - self._servers]

    @property
    def servers(self) -> Sequence[Worker]:
        """The parameter servers, whose ranks follow those of the workers."""
        return self.members[self.size - self._servers :]

    @property
    def peers(self) -> list[bytes]:
        """Every agent that has registered and has a slot."""
        with self._changed:
            return self.arrivals.peers

    @property
    def ready(self) -> bool:
        """True when a cell can run at once."""
        idle = self.phase is ClusterPhase.RUNNING and not self.stale and not self.lost
        return idle and all(worker.ready for worker in self.members)

    def note(self, peer: bytes, message: Message) -> Worker | None:
        """Take in one message; gives the worker it came from, once there is one."""
        with self._changed:
            self._changed.notify_all()
            worker = self._by_peer.get(peer)
            if worker is not None:
                self._note_worker(worker, message)
            else:
                self._note_other(peer, message)
            return worker

    def _note_other(self, peer: bytes, message: Message) -> None:
        """Take in what an agent says that is not among the members, or not yet."""
        match message:
            case Register():
                self.arrivals.arrive(peer, message)
            case AgentFailed() if self.arrivals.slot_of(job_of(peer)) in self.arrivals.awaited:
                self.refuse(message.reason)
            case AgentEnded():
                self.arrivals.leave(peer)
        slot = self.arrivals.copies.get(peer)
        if slot is not None and self.members and time.monotonic() - self.members[slot].seen > COPY_SECONDS:
            self.lose("Spark runs its task anew", slot)

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
            self.refused = ""
            return self.arrivals.expect(jobs)

    def give_up(self, slots: Collection[int]) -> None:
        """Await the agents of these slots no longer: they are missing still."""
        with self._changed:
            self.arrivals.give_up(slots)

    def keep(self, slots: Sequence[int]) -> list[bytes]:
        """Go on with the agents of these slots alone, as the first ones; gives those of the others."""
        with self._changed:
            logs = {worker.peer: worker.log for worker in self.members}
            others = self.arrivals.keep(slots)
            self.size, self.stale, self.lost = len(slots), True, ""
            self.take_in(rank_workers(list(self.arrivals.agents.values()), self._servers))
            for worker in self.members:
                worker.log = logs.get(worker.peer, worker.log)
            return others

    def lose(self, reason: str, slot: int) -> None:
        """The agent of a slot is missing; nothing happens unless it was there."""
        with self._changed:
            if self.phase is ClusterPhase.RUNNING and slot not in self.arrivals.awaited:
                self.arrivals.missing.add(slot)
                self.lost = self.lost or f"worker {slot} on {self.members[slot].agent.host}: {reason}"
            self._changed.notify_all()

    @property
    def gone(self) -> set[int]:
        """The slots whose agents are lost or to come."""
        return self.arrivals.missing | self.arrivals.awaited

    def missing(self) -> list[int]:
        """The slots whose agents are lost. A host takes several with it: those that are silent are waited for."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.arrivals.missing) == self.size, SETTLE_SECONDS)
        self.wait_until(self._is_certain, self.heartbeat_timeout, self.silence)
        with self._changed:
            return sorted(self.arrivals.missing)

    def _is_certain(self) -> bool:
        self._note_silence()
        return all(worker.rank in self.arrivals.missing for worker in self.silent(PAUSE_SECONDS))

    def refuse(self, reason: str) -> None:
        """An agent that is awaited cannot run. Without it there is no cluster, unless there was one before."""
        with self._changed:
            if self.phase is ClusterPhase.STARTING:
                self.fail(reason)
            self.refused = reason
            self._changed.notify_all()

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

    def silent(self, seconds: float) -> list[Worker]:
        """Those that have said nothing for longer than so many ``seconds``."""
        now = time.monotonic()
        return [worker for worker in self.members if now - worker.seen > seconds]

    def silence(self) -> str:
        """What is waited for where a worker has not been heard for a while; else empty."""
        if (said := self.unanswered()) or self.delay() > PAUSE_SECONDS:
            return said or "Spark, to carry the workers' messages once a slot is free"
        return silence_of(self.members, self.silent(PAUSE_SECONDS), PAUSE_SECONDS, self.heartbeat_timeout)

    def _note_silence(self) -> None:
        now = time.monotonic()
        since, self._checked = now - self._checked, now
        # This process may have been suspended, with messages waiting to be read.
        if max(since, self.delay()) > PAUSE_SECONDS:
            for worker in self.members:
                worker.seen = now
        for worker in self.silent(self.heartbeat_timeout):
            self.lose("it is out of reach", worker.rank)

    def _raise_lost(self) -> NoReturn:
        missing = [self.members[slot] for slot in self.gone]  # others may be replacing it already
        raise loss_of(missing, self.heartbeat_timeout, self.lost)

    def await_first(self, seconds: float) -> bool:
        """Whether an agent has come, or will not, within so many ``seconds``."""
        agents = self.arrivals.agents
        self.wait_until(lambda: bool(agents) or self._complete(), seconds, lambda: "a first agent")
        return bool(agents) or self._complete()

    def await_agents(self, timeout: float, endpoint: str) -> None:
        """Wait for the agents that are to come, which dial ``endpoint`` or, where it is empty, a relay; rank them."""
        agents = self.arrivals.agents
        self.wait_until(self._complete, timeout, lambda: f"agents: {len(agents)} of {self.size}")
        with self._changed:
            self.check(ExecutorError)
            refused, self.refused = self.refused, ""
            if refused:
                raise ExecutorError(refused)
            if not self._complete():
                raise too_few(len(agents), self.size, endpoint)
            logs = {worker.rank: worker.log for worker in self.members}
            self.take_in(rank_workers(list(agents.values()), self._servers))
            for worker in self.members:
                worker.log = logs.get(worker.rank, worker.log)
            self.arrivals.awaited.clear()
            self.lost = self.lost if self.arrivals.missing else ""
            self.phase = ClusterPhase.RUNNING

    def take_in(self, members: Sequence[Worker]) -> None:
        """These are the members from now on, by rank."""
        self.members, self._by_peer = members, {worker.peer: worker for worker in members}

    def begin_generation(self) -> int:
        """Forget the trainers there were; gives the new generation's number."""
        with self._changed:
            self.generation, self.stale, self._fallen = self.generation + 1, False, None
            for worker in self.members:
                worker.ready = None
            return self.generation

    def await_trainers(self, timeout: float) -> None:
        """Wait until every trainer of this generation has TensorFlow loaded."""
        self.wait_until(self._settled, timeout, self._loaded)
        with self._changed:
            self.check()
            self.check_agents()
            for worker in self.members:
                if worker.ready and worker.ready.error:
                    self.stale = True
                    raise ClusterError(f"Worker {worker.rank} on {worker.agent.host}: {worker.ready.error}")
            if self._fallen is not None:
                raise death_of(*self._fallen)
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
                workers=tuple(status_of(each, each.rank in self.gone, self.phase.ended) for each in self.members),
                tensorflow=first.versions.get("tensorflow", "") if first else "",
                keras=first.versions.get("keras", "") if first else "",
                reason=self.reason or (self.unanswered() and f"It waits for {self.unanswered()}.") or self.lost,
            )

    def _complete(self) -> bool:
        return len(self.arrivals.agents) >= self.size or self.phase.ended or bool(self.refused)

    def _loaded(self) -> str:
        return f"TensorFlow: {sum(worker.ready is not None for worker in self.members)} of {len(self.members)} workers"

    def _settled(self) -> bool:
        failed = any(worker.ready and worker.ready.error for worker in self.members)
        if failed or self.stale or self.phase.ended or all(worker.ready for worker in self.members):
            return True
        self.check_agents()
        return False
