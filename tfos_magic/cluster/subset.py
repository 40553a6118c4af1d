"""A part of a cluster's workers, which train by themselves beside the other parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.trainer_group import TrainerGroup
from tfos_magic.cluster.worker_group import WorkerGroup
from tfos_magic.cluster.workers import LOG_LINES, ClusterPhase, Worker
from tfos_magic.errors import ClusterError, WorkerLost
from tfos_magic.transport.messages import Message


class SubsetMembership(Membership):
    """The members with ``ranks`` of the ``whole``, whose ranks here are from 0. It ends and loses agents as that does,
    and has generations of its own, with numbers that no other part has."""

    def __init__(self, whole: Membership, ranks: Sequence[int]) -> None:
        super().__init__(len(ranks), whole.heartbeat_timeout)
        self._whole, self._ranks, self.unanswered = whole, ranks, whole.unanswered
        self.delay = lambda: whole.delay()  # which a detour sets, and changes
        self.renew()
        self.phase = ClusterPhase.RUNNING

    def renew(self) -> None:
        """Know the agents that there are now; their trainers are to be started."""
        with self._changed:
            self.take_in(
                [
                    replace(self._whole.members[slot], rank=rank, ready=None, log=deque(maxlen=LOG_LINES))
                    for rank, slot in enumerate(self._ranks)
                ]
            )
            self.arrivals.missing.clear()
            self.lost, self.stale = "", True

    def begin_generation(self) -> int:
        """Forget the trainers there were; the number is the next of the whole cluster."""
        with self._changed:
            number = self._whole.begin_generation()
            super().begin_generation()
            self.generation = number
            return number

    def check(self, kind: type[ClusterError] = ClusterError) -> None:
        """Raise ``kind`` when the cluster has ended, saying why."""
        self._whole.check(kind)

    def check_agents(self) -> None:
        """Raise :class:`WorkerLost` when an agent of this part was lost, :class:`ClusterError` at the cluster's end."""
        with self._whole.lock:
            self._whole.check()
            self._whole._note_silence()
            gone = self._whole.gone
            here = [worker.peer for worker in self._whole.members]
            # An agent that another part had replaced is lost to this one, too.
            lost = [
                worker.rank
                for worker, slot in zip(self.members, self._ranks, strict=True)
                if slot in gone or worker.peer != here[slot]
            ]
        for rank in lost:
            self.lose("it was lost", rank)
        super().check_agents()

    def await_loss(self, seconds: float) -> None:
        """Raise :class:`WorkerLost` as soon as any agent of the cluster is known to be lost: a feed goes to all."""
        try:
            self._whole.await_loss(seconds)
        except WorkerLost:
            self.lost = self._whole.lost
            raise

    def _note_worker(self, worker: Worker, message: Message) -> None:
        super()._note_worker(worker, message)
        self._whole.members[self._ranks[worker.rank]].ready = worker.ready  # for who asks how the cluster is


class WorkerSubset(TrainerGroup):
    """The workers with ``ranks`` of the cluster ``whole``: they get all rows of what is fed, shared out among them.

    While there is such a part the whole runs nothing; :meth:`close` ends that.
    """

    membership: SubsetMembership
    of_item = True

    def __init__(self, whole: WorkerGroup, ranks: Sequence[int]) -> None:
        super().__init__(len(ranks), SubsetMembership(whole.membership, ranks), whole.start_timeout, whole.nccl)
        self.encrypted = whole.encrypted
        self.ranks, self._whole = ranks, whole
        self.feeds, self.feed_world = whole.feeds, len(ranks)
        whole.hearers.append(self._hear)

    def tell(self, rank: int, message: Message) -> None:
        self._whole.tell(self.ranks[rank], message)

    def settle(self) -> None:
        self._whole.settle()

    def revive(self) -> None:
        self._whole.relaunch()
        self.membership.renew()
        self.spawn_trainers()

    def private_files(self) -> str:
        return self._whole.private_files()

    def close(self) -> None:
        """Leave the workers to the whole, whose trainers are started with its next run."""
        self._whole.hearers.remove(self._hear)
        self._whole.membership.stale = True

    def _hear(self, peer: bytes, message: Message) -> None:
        worker = self.membership.note(peer, message)
        if worker is not None and (listener := self._listener):
            listener(worker.rank, message)
