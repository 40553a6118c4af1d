"""Who takes part in an asynchronous run: clocks that may not drift apart, sums over those who are there.

The first parameter server keeps it. Clocks follow the stale synchronous parallel model (Ho et al. 2013): a worker that
is more than ``max_staleness`` steps ahead of the slowest waits for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfos_magic.training.parameter_server.array_frames import Array

EPOCH_BEGINS = -1


@dataclass(frozen=True)
class Ticket:
    """A request that waits for its answer: whose it is, and its number."""

    peer: bytes
    number: int


@dataclass(frozen=True, order=True)
class CellPosition:
    """Where in the cell an operation stands: the fit from 1, the epoch from 0, its number there."""

    fit: int
    epoch: int
    number: int


@dataclass
class _Sum:
    terms: dict[int, list[Array]] = field(default_factory=dict)
    tickets: dict[int, Ticket] = field(default_factory=dict)


@dataclass(frozen=True)
class _Joining:
    rank: int
    fit: int
    ticket: Ticket


Send = Callable[[Ticket, Mapping[str, Any], Sequence[Array]], None]


class Coordinator:
    """``members`` are peers by rank, rank 0 among them for as long as the run lasts: what it keeps is the result.

    ``send`` answers a request, ``answer`` a push. ``furthest`` is the greatest lead, in steps, that a member had.
    """

    def __init__(
        self, members: Mapping[int, bytes], max_staleness: int, send: Send, answer: Callable[[Ticket], None]
    ) -> None:
        self.members = dict(members)
        self.clocks = dict.fromkeys(members, 0)
        self.votes = [0.0, 0.0]
        self.furthest = 0
        self._max_staleness = max_staleness
        self._send, self._answer = send, answer
        self._failure: dict[str, str] = {}
        self._waiting: list[tuple[int, Ticket]] = []
        self._sums: dict[CellPosition, _Sum] = {}
        self._joining: list[_Joining] = []
        self._fit = 0

    def is_member(self, rank: int, peer: bytes) -> bool:
        return self.members.get(rank) == peer

    def begin_fit(self) -> None:
        """All members are at the same point, and no step has been taken."""
        self.clocks = dict.fromkeys(self.members, 0)
        self.votes = [0.0, 0.0]

    def push(self, rank: int, votes: Sequence[float], ticket: Ticket) -> None:
        """A member's step has been applied; it is answered when it may take the next."""
        self.clocks[rank] += 1
        self.votes = [max(pair) for pair in zip(self.votes, votes, strict=True)]
        self._waiting.append((rank, ticket))
        self._move_on()

    def contribute(self, rank: int, place: CellPosition, terms: list[Array], ticket: Ticket) -> None:
        """A member's terms of a sum, which all members get when all have given theirs."""
        if self._failure:
            self._send(ticket, self._failure, ())
            return
        sum_ = self._sums.setdefault(place, _Sum())
        sum_.terms[rank], sum_.tickets[rank] = terms, ticket
        self._move_on()

    def join(self, rank: int, fit: int, ticket: Ticket) -> None:
        """A worker that came later waits until the next epoch of its fit begins; told ``over`` where none will."""
        self._joining.append(_Joining(rank, fit, ticket))
        self._turn_away()

    def leave(self, rank: int, status: str) -> None:
        """A member ended its cell: ``ok``, ``stopped`` or ``error``."""
        if status == "stopped":
            self._fail({"status": "stopped"})
        self._remove(rank, status == "ok", "its cell failed")

    def drop(self, rank: int, why: str) -> None:
        """A member is gone; the others go on."""
        self._remove(rank, False, why)

    def _remove(self, rank: int, in_order: bool, why: str) -> None:
        self.members.pop(rank, None)
        self.clocks.pop(rank, None)
        self._waiting = [(other, ticket) for other, ticket in self._waiting if other != rank]
        if rank == 0 and not in_order:
            self._fail({"status": "lost", "text": f"rank 0, which keeps the result, left the run: {why}"})
        self._move_on()
        self._turn_away()

    def _fail(self, reply: dict[str, str]) -> None:
        """Answer all that waits, and whatever comes, with ``reply``."""
        self._failure = self._failure or reply
        waiting = [ticket for sum_ in self._sums.values() for ticket in sum_.tickets.values()]
        waiting += [ticket for _, ticket in self._waiting]
        self._sums.clear()
        self._waiting.clear()
        for ticket in waiting:
            self._send(ticket, self._failure, ())
        self._turn_away()

    def _move_on(self) -> None:
        """Answer whoever needs to wait no longer."""
        slowest = min(self.clocks.values(), default=0)
        self.furthest = max([self.furthest, *(clock - slowest for clock in self.clocks.values())])
        waiting, self._waiting = self._waiting, []
        for rank, ticket in waiting:
            if self._failure:
                self._send(ticket, self._failure, ())
            elif any(self.votes) or self.clocks[rank] - slowest <= self._max_staleness:
                self._answer(ticket)
            else:
                self._waiting.append((rank, ticket))
        for place, sum_ in list(self._sums.items()):
            if place in self._sums and self.members.keys() <= sum_.terms.keys():
                del self._sums[place]
                self._complete(place, sum_)

    def _complete(self, place: CellPosition, sum_: _Sum) -> None:
        ranks = sorted(sum_.terms)
        given = {rank: [(str(term.dtype), term.shape) for term in sum_.terms[rank]] for rank in ranks}
        if any(terms != given[ranks[0]] for terms in given.values()):
            listed = "; ".join(f"rank {rank}: {str(terms)[:200]}" for rank, terms in given.items())
            self._sums[place] = sum_
            self._fail({"status": "lost", "text": f"the cell does not do the same on every worker ({listed})"})
            return
        # In the order of ranks, so that a repetition gives the same bits.
        totals = [_add([sum_.terms[rank][i] for rank in ranks]) for i in range(len(sum_.terms[ranks[0]]))]
        for ticket in sum_.tickets.values():
            self._send(ticket, {"status": "ok", "present": ranks}, totals)
        if place.number == EPOCH_BEGINS:
            self._fit = place.fit
            self._admit(place)

    def _admit(self, place: CellPosition) -> None:
        """Take in those that wait for this fit, at the start of an epoch, when all members are at one point."""
        self._turn_away()
        for joining in [j for j in self._joining if j.fit == place.fit]:
            self._joining.remove(joining)
            self.members[joining.rank] = joining.ticket.peer
            self.clocks[joining.rank] = min(self.clocks.values(), default=0)
            self._send(joining.ticket, {"status": "ok", "over": False, "epoch": place.epoch}, ())

    def _turn_away(self) -> None:
        """Tell those that wait for a fit that is over, or for members that are gone, not to wait."""
        for joining in [j for j in self._joining if j.fit < self._fit or not self.members or self._failure]:
            self._joining.remove(joining)
            self._send(joining.ticket, self._failure or {"status": "ok", "over": True}, ())


def _add(terms: Sequence[Array]) -> Array:
    total = terms[0]
    for term in terms[1:]:
        total = np.add(total, term)
    return np.asarray(total)
