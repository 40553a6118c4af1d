"""The workers of a cluster, from their start to their end."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tfos_magic.cluster.agents import Agents
from tfos_magic.cluster.lifecycle import Upkeep, close_at_exit, forget
from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.runs.run_queue import RunQueue
from tfos_magic.cluster.startup import Waits, heard_somewhere, tell
from tfos_magic.cluster.trainer_group import TrainerGroup
from tfos_magic.cluster.workers import ClusterPhase, ClusterSpec
from tfos_magic.errors import ClusterError
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.driver.spooled_feeds import FeedMessage, FeedStore
from tfos_magic.processes.temporary_folder import LateFolder
from tfos_magic.spark import session as sessions
from tfos_magic.spark.connect.reachability import is_silent
from tfos_magic.spark.connect.watch import ServerWatch
from tfos_magic.spark.encryption import Encrypt, encryption_of
from tfos_magic.spark.slots import check_allocation
from tfos_magic.transport.agent_config import HEARTBEAT_TIMEOUT
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.identity import FEEDER, Authority
from tfos_magic.transport.messages import Message, Shutdown
from tfos_magic.transport.secret import Secret

STOP_TIMEOUT = 10.0
QUICK_STOP_TIMEOUT = 1.5
SLOT_SECONDS = 5.0


Group = TypeVar("Group", bound="WorkerGroup")


class WorkerGroup(TrainerGroup):
    """The workers and parameter servers of a cluster: started, spoken to, replaced where they were lost, and ended.

    The arguments are those of :class:`~tfos_magic.cluster.cluster.TFCluster`.
    """

    def __init__(
        self,
        spark: Any = None,
        *,
        workers: int = 2,
        servers: int = 0,
        cores: int = 1,
        gpus: int = 0,
        start_timeout: float = 120.0,
        driver_host: str = "",
        control_port: int = 0,
        spool_dir: str | None = None,
        spool_gb: float | None = None,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
        nccl: bool = False,
        encrypt: Encrypt = "auto",
        hold_slots: bool = True,
        idle_timeout: float = 0.0,
        most_workers: int = 0,
        via: str = "",
    ) -> None:
        self.spec = ClusterSpec(
            workers=workers,
            servers=servers,
            cores=cores,
            gpus=gpus,
            start_timeout=start_timeout,
            driver_host=driver_host,
            control_port=control_port,
            spool_dir=spool_dir,
            spool_gb=spool_gb,
            heartbeat_timeout=heartbeat_timeout,
            nccl=nccl,
            encrypt=encrypt,
            hold_slots=hold_slots,
            idle_timeout=idle_timeout,
            most_workers=most_workers,
            via=via,
        )
        if spark is None:
            tell("a Spark session")
        self.spark = spark or sessions.make_local_session(self.spec.slots)
        membership = Membership(workers + servers, heartbeat_timeout, servers=servers)
        super().__init__(workers, membership, start_timeout, nccl)
        self.queue: RunQueue[Any] = RunQueue()
        self._token = Secret(secrets.token_urlsafe(32))
        self._authority = Authority()
        self._agents = Agents(self.spark, self.membership, self.spec, self._token, self._authority)
        self._files = LateFolder("tfos-files-")
        self._control: ControlServer | None = None
        self._server = ServerWatch(self.spark, self._on_server_end)
        self.membership.unanswered = lambda: self._server.waits
        self._revival = threading.Lock()
        self.hearers: list[Callable[[bytes, Message], None]] = []

    def start(self: Group, wait_for_trainers: bool = True) -> Group:
        """Start agents and trainers. Returns when all are there; with ``wait_for_trainers=False`` when the agents are.

        Raises :class:`StartTimeout` naming what was missing, :class:`ExecutorError` when an executor cannot run a
        trainer, :class:`ClusterError` for anything else. After a failed start nothing is left running.
        """
        with heard_somewhere(Waits()), sessions.sparing_jobs():
            self._start(time.monotonic() + self.start_timeout, wait_for_trainers)
        return self

    def _start(self, deadline: float, wait_for_trainers: bool) -> None:
        try:
            self._server.start()
            self.settle()
            check_allocation(self.spark, self.spec.hold_slots)
            self._agents.ask("the session's settings", self._decide_encryption)
            self._agents.await_slots(deadline)
            if self.spec.most_workers:
                self.size = self.membership.size = self._largest(self._agents.free())
            self._agents.launch(self._listen(), deadline)
            self.notices += self._agents.detour.notices(self.spec.via)
            self._open_feeds()
            self.spawn_trainers()
            if wait_for_trainers:
                self.wait_ready(deadline - time.monotonic())
            Upkeep(self).start()
        except BaseException as error:
            (self.membership.fail if str(error) else self.membership.end)(str(error) or "its start was stopped")
            self._end(force=True, timeout=STOP_TIMEOUT)
            raise

    def _open_feeds(self) -> None:
        access = FeedAccess(self._token, self._authority.identify(FEEDER))
        self.feeds = FeedStore(self.spark, [worker.agent.feed for worker in self.workers], access, self.tell)

    def _decide_encryption(self) -> None:
        decided = encryption_of(self.spark, self.spec.encrypt, self.spec.spool_dir, self.spec.spool_gb)
        if decided.network and self.nccl:
            raise ClusterError(
                f"nccl sends gradients over unprotected ports, and traffic between hosts is to be encrypted "
                f"({decided.why}): leave nccl out, or set encrypt=False on a network of your own alone."
            )
        self.encrypted = decided.network
        self._agents.encryption = decided

    def check_room(self, other: WorkerGroup) -> None:
        """Raise :class:`StartTimeout` where there will be no room for this one when the ``other`` has ended."""
        if self.spark is other.spark:
            self._agents.await_slots(time.monotonic(), other._agents.cores)

    def _listen(self) -> ControlServer:
        # A detour ends in this process.
        host = "127.0.0.1" if self.spec.via else self.spec.driver_host or sessions.driver_address(self.spark)
        relayed = bool(self.spec.via)
        self._control = ControlServer(host, self.spec.control_port, self._on_message, relayed=relayed)
        close_at_exit(self)
        return self._control

    def settle(self) -> None:
        self._server.settle(tell)
        if not sessions.is_connect(self.spark) and sessions.is_stopped(self.spark):
            self.membership.fail(sessions.end_of(self.spark), session=True)
        self.membership.check()

    def _on_server_end(self, reason: str) -> None:
        self.membership.fail(reason, session=True)
        self._end(force=False, timeout=QUICK_STOP_TIMEOUT)

    def revive(self) -> None:
        self.relaunch()
        self.spawn_trainers()

    def relaunch(self) -> None:
        """Replace the agents that are lost. From several threads at once: one does it, the others wait."""
        assert self._control is not None
        assert self.feeds is not None
        with self._revival:
            if not self.membership.lost:
                return
            deadline, lost = time.monotonic() + self.start_timeout, self.membership.missing()
            self._agents.clear(lost)
            left = [rank for rank in range(self.size) if rank not in lost]
            may_shrink = self.spec.most_workers and left and not self.hearers  # parts of a map know them by number
            if may_shrink and not self._agents.await_room(len(lost), SLOT_SECONDS):
                more = max(0, self.spec.workers - len(left), min(len(lost), self._agents.free()))
                if not more or self._agents.await_room(more, deadline - time.monotonic()):
                    self._go_on_with(left)
                    self._grow(len(left) + more, deadline)
                    return
            self._agents.relaunch(lost, self._control, deadline)
            self.feeds.move([worker.agent.feed for worker in self.workers], lost)

    def _grow(self, workers: int, deadline: float) -> None:
        """Have so many workers, where that is more than there are."""
        assert self._control is not None
        if workers > self.size:
            self._agents.grow(workers, self._control, deadline)
            self._go_on_with(range(workers))

    def take_size(self) -> str:
        wanted, self.wanted = self.wanted, None
        try:
            if wanted not in (None, self.size):
                self.resize(wanted)
        except ClusterError as error:
            self.membership.check()
            return f"The cluster stays at {self.size} workers: {error}"
        return ""

    def resize(self, workers: int) -> None:
        """Have so many workers; those that were there stay. What was fed is to be fed again. Without room all stays."""
        self.relaunch()
        self._grow(workers, time.monotonic() + self.start_timeout)
        if workers < self.size:
            self._go_on_with(range(workers))

    def _go_on_with(self, ranks: Sequence[int]) -> None:
        """Have the workers of these ranks alone, renumbered in this order, to whom all is fed again."""
        assert self._control is not None
        assert self.feeds is not None
        self.feeds.release()
        self._agents.keep(ranks, self._control)
        self.size = len(ranks)
        self._open_feeds()

    def _largest(self, workers: int) -> int:
        """As many workers as that, if it is no fewer than now and no more than there may be."""
        return max(self.size, min(workers, self.spec.most_workers))

    @property
    def endpoint(self) -> str:
        """Where agents dial in, such as ``tcp://127.0.0.1:40123``; empty when the cluster has ended."""
        return self._control.endpoint if self._control else ""

    @property
    def phase(self) -> ClusterPhase:
        return self.membership.phase

    def private_files(self) -> str:
        with suppress(OSError):
            return self._files.path()
        return ""

    def tell(self, rank: int, message: Message) -> None:
        if self._control is not None:
            self._control.send(self.membership.members[rank].peer, message)

    def _on_message(self, peer: bytes, message: Message) -> None:
        worker = self.membership.note(peer, message)
        if self.membership.arrivals.is_stray(peer):
            self._dismiss(peer)
            return
        if worker is None:
            return
        if isinstance(message, FeedMessage) and self.feeds is not None:
            self.feeds.note(worker.rank, message)
        if listener := self._listener:
            listener(worker.rank, message)
        for hear in list(self.hearers):
            hear(peer, message)

    def _dismiss(self, peer: bytes) -> None:
        if self._control is not None:
            self._control.send(peer, Shutdown())

    def stop(self, force: bool = False, timeout: float = STOP_TIMEOUT) -> None:
        """End trainers, agents and spools. Waits for Spark to have its slots back. ``force`` cancels without asking.

        The session and its other jobs are not touched. Stopping twice is harmless.
        """
        self.membership.end()
        self._end(force, timeout)

    def close_quickly(self) -> None:
        """What is done at the kernel's exit: ask the agents to end, in less than two seconds."""
        self.membership.end()
        self._end(force=False, timeout=QUICK_STOP_TIMEOUT, cancel=False)

    def _end(self, force: bool, timeout: float, cancel: bool = True) -> None:
        control, self._control = self._control, None
        self._server.close()
        if control is None:
            return
        forget(self)
        self._agents.invitation.withdraw()
        if not force:
            for peer in self.membership.peers:
                control.send(peer, Shutdown())
        if (force or not self._agents.wait(timeout)) and cancel:
            self._agents.cancel()
        self._agents.detour.close(quick=not cancel or is_silent(self.spark))
        control.close()
        self._files.close()
