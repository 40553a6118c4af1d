"""Workers that train together: their trainers, started anew as needed, and what a run asks of them."""

from __future__ import annotations

import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.workers import Worker
from tfos_magic.feed.driver.spooled_feeds import FeedStore
from tfos_magic.transport.messages import Message, StartTrainer
from tfos_magic.transport.secret import Secret


class TrainerGroup(ABC):
    """The trainers of ``membership``, ``size`` of them workers, on agents that are there already.

    A run has one such group, which is all of a cluster or a part of it. ``start_timeout`` in seconds bounds the start
    of its trainers, which sum by TensorFlow's own collectives where ``nccl`` says so.
    What they send to other hosts is ``encrypted`` where that is set. ``wanted`` is the size that a run which goes on is
    to have from its next checkpoint on, if another. ``notices`` are for the next run to tell.
    """

    of_item = False
    """Whether it trains an item of a map, of which there are others."""

    def __init__(self, size: int, membership: Membership, start_timeout: float, nccl: bool = False) -> None:
        self.size, self.membership = size, membership
        self.feeds: FeedStore | None = None
        self.feed_world = 0
        self.wanted: int | None = None
        self.start_timeout, self.nccl, self.encrypted = start_timeout, nccl, False
        self.notices: list[str] = []
        self._secret = ""
        self._listener: Callable[[int, Message], None] | None = None

    @abstractmethod
    def tell(self, rank: int, message: Message) -> None:
        """Send a command to a rank's agent; nothing happens when the cluster has ended."""

    @abstractmethod
    def revive(self) -> None:
        """Replace agents that were lost, each by that of a new Spark job; what they held is to be fed anew.

        Returns while the new trainers load. Raises :class:`StartTimeout` when Spark has no room for the agents.
        """

    @abstractmethod
    def settle(self) -> None:
        """See that the Spark session is of use: where its server does not answer, wait until it does.

        Raises :class:`ClusterError` where the session was stopped, and where the server is given up.
        """

    @abstractmethod
    def private_files(self) -> str:
        """A folder for temporary files of cells, which goes with the cluster; empty where there is no room for one."""

    def take_size(self) -> str:
        """Have as many workers as are wanted; gives what there is to say of that. Nothing runs meanwhile."""
        return ""

    def spawn_trainers(self) -> None:
        """Begin a new generation: fresh trainer processes, TensorFlow's cluster formed anew."""
        self.membership.begin_generation()
        self._secret = Secret(secrets.token_urlsafe(32))
        for worker in self.membership.members:
            self._spawn(worker)

    def replace_trainer(self, rank: int) -> None:
        """Start a trainer in the place of one that died, in the same generation: it can take part in strategy ``async``
        alone, so the next run begins a new generation."""
        self._spawn(self.workers[rank], late=True)

    def _spawn(self, worker: Worker, late: bool = False) -> None:
        message = StartTrainer(
            generation=self.membership.generation,
            rank=worker.rank,
            addresses=[worker.address for worker in self.workers],
            local_rank=worker.local_rank,
            local_size=worker.local_size,
            sys_path=[os.path.abspath(path or os.getcwd()) for path in sys.path],
            timeout=self.start_timeout,
            role=worker.role,
            servers=[server.address for server in self.servers],
            secret=self._secret,
            late=late,
            nccl=self.nccl,
            names=[worker.agent.feed.name for worker in self.workers] if self.encrypted else [],
        )
        self.tell(worker.rank, message)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until every trainer has TensorFlow loaded; what was lost is started anew first."""
        self.membership.check()
        if self.membership.lost:
            self.revive()
        if self.membership.stale:
            self.spawn_trainers()
        self.membership.await_trainers(self.start_timeout if timeout is None else timeout)

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers by rank; empty until all agents are there."""
        return self.membership.workers

    @property
    def servers(self) -> Sequence[Worker]:
        """The parameter servers; empty until all agents are there."""
        return self.membership.servers

    @property
    def ready(self) -> bool:
        """True when a cell can run at once."""
        return self.membership.ready

    def listen(self, listener: Callable[[int, Message], None] | None) -> None:
        """Set who hears the workers' messages, with the rank of who sent each, in the control thread; one run at a
        time."""
        self._listener = listener
