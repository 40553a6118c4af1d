"""Who is in a cluster and what they have said: agents as they register, trainers as they load, their last words.

The control thread writes here, everybody else reads and waits; one condition variable guards it all.
"""

from __future__ import annotations

import threading
import time

from tfos_magic.cluster.workers import ClusterPhase, Worker, rank_workers
from tfos_magic.errors import ClusterError, ExecutorError, StartTimeout
from tfos_magic.protocol import (
    AgentFailed,
    Heartbeat,
    Message,
    Output,
    Register,
    TrainerExited,
    TrainerReady,
)

SILENCE = 20.0


class Roster:
    """The members of a cluster of ``size`` workers and its phase. ``stale`` trainers must be spawned anew."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.phase = ClusterPhase.STARTING
        self.reason = ""
        self.generation = 0
        self.stale = False
        self.workers: list[Worker] = []
        self._arrived: dict[bytes, Register] = {}
        self._changed = threading.Condition(threading.RLock())

    @property
    def lock(self) -> threading.Condition:
        """Hold it to read several things that must belong together."""
        return self._changed

    @property
    def peers(self) -> list[bytes]:
        """Every agent that has registered."""
        return list(self._arrived)

    @property
    def ready(self) -> bool:
        """True when a cell can run at once."""
        return self.phase is ClusterPhase.RUNNING and not self.stale and all(w.ready for w in self.workers)

    def note(self, peer: bytes, message: Message) -> Worker | None:
        """Take in one message; gives the worker it came from, once there is one."""
        with self._changed:
            self._changed.notify_all()
            if isinstance(message, Register) and self._wanted(peer):
                self._arrived[peer] = message
            elif isinstance(message, AgentFailed):
                self.fail(message.reason)
            worker = next((worker for worker in self.workers if worker.peer == peer), None)
            if worker is not None:
                self._note_worker(worker, message)
            return worker

    def _wanted(self, peer: bytes) -> bool:
        return len(self._arrived) < self.size and self.phase is ClusterPhase.STARTING

    def _note_worker(self, worker: Worker, message: Message) -> None:
        worker.seen = time.monotonic()
        match message:
            case Heartbeat():
                worker.beat = message
            case TrainerReady() if message.generation == self.generation:
                worker.ready = message
            case TrainerExited() if message.generation == self.generation:
                worker.ready, self.stale = None, True
                self.reason = f"worker {worker.rank} on {worker.agent.host}, {message.output[-500:]}"
            case Output():
                worker.log.extend(line for line in message.text.splitlines() if line.strip())

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
        """Raise :class:`ClusterError` when an agent has been silent for too long."""
        now = time.monotonic()
        for worker in self.workers:
            if now - worker.seen > SILENCE:
                raise ClusterError(
                    f"Worker {worker.rank} on {worker.agent.host} has been silent for {SILENCE:.0f} s: its host is "
                    "overloaded or out of reach. %tfos stop --force ends the cluster; %tfos start makes a new one."
                )

    def await_agents(self, timeout: float, endpoint: str) -> None:
        """Wait for all agents and give them their ranks."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._arrived) >= self.size or self.phase.ended, max(0.0, timeout))
            self.check(ExecutorError)
            if len(self._arrived) < self.size:
                raise StartTimeout(
                    f"{len(self._arrived)} of {self.size} workers came up within {timeout:.0f} s. Spark has not "
                    f"started the other tasks, for they need {self.size} free slots at once and feeding one more, or "
                    f"they cannot reach {endpoint}: see the executors' logs, set %config TFOS.driver_host to an "
                    "address they reach, or give more --start-timeout."
                )
            self.workers = rank_workers(list(self._arrived.items()))
            self.phase = ClusterPhase.RUNNING

    def begin_generation(self) -> int:
        """Forget the trainers there were; gives the new generation's number."""
        with self._changed:
            self.generation += 1
            self.stale = False
            for worker in self.workers:
                worker.ready = None
            return self.generation

    def await_trainers(self, timeout: float) -> None:
        """Wait until every trainer of this generation has TensorFlow loaded."""
        with self._changed:
            self._changed.wait_for(self._settled, max(0.0, timeout))
            self.check()
            for worker in self.workers:
                if worker.ready and worker.ready.error:
                    self.stale = True
                    raise ClusterError(f"Worker {worker.rank} on {worker.agent.host}: {worker.ready.error}")
            if self.stale:
                raise ClusterError(f"A trainer died while it was starting: {self.reason}")
            if loading := [str(worker.rank) for worker in self.workers if worker.ready is None]:
                raise StartTimeout(
                    f"Worker {', '.join(loading)} did not have TensorFlow loaded within {timeout:.0f} s: see %tfos "
                    "logs, or give more --start-timeout."
                )

    def _settled(self) -> bool:
        failed = any(worker.ready and worker.ready.error for worker in self.workers)
        return failed or self.stale or self.phase.ended or all(worker.ready for worker in self.workers)
