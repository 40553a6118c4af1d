"""Which Spark job is to fill each slot of a cluster, and the agents that have come from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tfos_magic.transport.control_server import job_of
from tfos_magic.transport.messages import Register


class Arrivals:
    """``agents`` are those that fill a slot, with their routing ids; ``awaited`` slots wait for theirs, and ``missing``
    ones have lost it.

    Spark may run the task of an agent that lives a second time: speculative execution does, and the loss of an
    executor that is back. Such ``copies`` get no work. They are not ended either, for Spark would take the task for
    done then, and kill the agent.
    """

    def __init__(self) -> None:
        self.agents: dict[int, tuple[bytes, Register]] = {}
        self.awaited: set[int] = set()
        self.missing: set[int] = set()
        self.copies: dict[bytes, int] = {}
        self._slots: dict[str, int] = {}
        self._peers: dict[bytes, int] = {}

    @property
    def peers(self) -> list[bytes]:
        return list(self._peers)

    def slot_of(self, job: str) -> int | None:
        """The slot that a job is to fill; None for one that was given up."""
        return self._slots.get(job)

    def is_stray(self, peer: bytes) -> bool:
        """True for an agent that has no place here: of a job that was given up."""
        known = peer in self._peers or peer in self.copies
        return not known and self.slot_of(job_of(peer)) not in self.awaited

    def expect(self, jobs: Mapping[int, str]) -> list[bytes]:
        """Await the agents of ``jobs``, by slot; gives those that there were in these slots, which count no more."""
        before = [peer for peer, slot in (self._peers | self.copies).items() if slot in jobs]
        for peer in before:
            self.leave(peer)
        self._slots = {job: slot for job, slot in self._slots.items() if slot not in jobs}
        self._slots.update({job: slot for slot, job in jobs.items()})
        self.awaited.update(jobs)
        self.missing.difference_update(jobs)
        return before

    def give_up(self, slots: Collection[int]) -> None:
        """Await the agents of these slots no longer: they are missing still."""
        self.awaited.difference_update(slots)
        self.missing.update(slots)

    def keep(self, slots: Sequence[int]) -> list[bytes]:
        """Let these slots be the first ones, in this order, and the only ones; gives the agents of the others."""
        renumbered = {slot: number for number, slot in enumerate(slots)}
        others = [peer for peer, slot in (self._peers | self.copies).items() if slot not in renumbered]
        for peer in others:
            self.leave(peer)
        self.agents = {renumbered[slot]: agent for slot, agent in self.agents.items()}
        self._peers = {peer: renumbered[slot] for peer, slot in self._peers.items()}
        self.copies = {peer: renumbered[slot] for peer, slot in self.copies.items()}
        self._slots = {job: renumbered[slot] for job, slot in self._slots.items() if slot in renumbered}
        self.awaited.clear()
        self.missing.clear()
        return others

    def arrive(self, peer: bytes, message: Register) -> None:
        """Take an agent that registers, if its job is the one that is to fill its slot."""
        slot = self._slots.get(message.job)
        if slot is None or message.job != job_of(peer) or peer in self._peers:
            return
        if slot not in self.awaited:
            self.copies[peer] = slot
            return
        if slot in self.agents:  # its task has begun anew
            before, _ = self.agents[slot]
            self.copies[before] = self._peers.pop(before)
        self.agents[slot], self._peers[peer] = (peer, message), slot

    def leave(self, peer: bytes) -> None:
        """The agent has ended, or counts no more."""
        self.copies.pop(peer, None)
        if (slot := self._peers.pop(peer, None)) is not None:
            del self.agents[slot]
