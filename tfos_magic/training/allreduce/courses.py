"""What members send each other in one exchange, and in which order: all at once, or share after share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

Room = Callable[[int, float], Sequence[memoryview]]


class Course(Protocol):
    """What goes to each peer in one exchange and comes from it, segment after segment."""

    def bytes_to(self, other: int) -> int:
        """How many bytes go to a peer in all."""
        ...

    def open(self, other: int, weight: float) -> int:
        """A peer has come with its weight; how many bytes it is to send."""
        ...

    def outgoing(self, other: int) -> Sequence[memoryview]:
        """What can go to a peer by now, and was not given before."""
        ...

    def incoming(self, other: int) -> Sequence[memoryview]:
        """Where the next segment of a peer goes; nothing where there is no room for it yet, or it was the last."""
        ...

    def came(self, other: int) -> None:
        """That segment is there."""
        ...

    def is_over(self, other: int) -> bool:
        """Whether all that a peer gets was given out, and all that it has to send is there."""
        ...


class Swap:
    """A course of one segment each way: the bytes ``out`` to each peer, and what comes into its ``room``, which is
    given the member and its weight."""

    def __init__(self, out: Mapping[int, Sequence[memoryview]], room: Room) -> None:
        self._out, self._room = dict(out), room
        self._sizes = {other: _length(views) for other, views in out.items()}
        self._into: dict[int, Sequence[memoryview]] = {}
        self._left = set(out)

    def bytes_to(self, other: int) -> int:
        return self._sizes[other]

    def open(self, other: int, weight: float) -> int:
        self._into[other] = self._room(other, weight)
        if not (length := _length(self._into[other])):
            self.came(other)
        return length

    def outgoing(self, other: int) -> Sequence[memoryview]:
        return self._out.pop(other, ())

    def incoming(self, other: int) -> Sequence[memoryview]:
        return self._into.pop(other, ())

    def came(self, other: int) -> None:
        self._left.discard(other)

    def is_over(self, other: int) -> bool:
        return other not in self._left


class Segment(NamedTuple):
    """The terms for a share of a round, or the results of it."""

    round: int
    is_result: bool


class Rounds(Protocol):
    """A reduction in rounds, in each of which every member adds up a share, and sends the others what it has added."""

    @property
    def rounds(self) -> int: ...

    def outgoing(self, segment: Segment, other: int) -> Sequence[memoryview]:
        """The terms of this member for the share of another, or the results that this one has added."""
        ...

    def incoming(self, segment: Segment, other: int) -> Sequence[memoryview]:
        """Room for what another member has to send in turn."""
        ...

    def add(self, number: int, weights: Sequence[float]) -> None:
        """Add up this member's share of a round, all terms of which are there."""
        ...


class Shares:
    """The course of a reduction by shares: ``at_once`` rounds are under way, and each that is added lets another begin.

    All members send, and so receive, segments in one order.
    """

    def __init__(self, reduction: Rounds, size: int, place: int, at_once: int, weight: float) -> None:
        self._reduction, self._at_once = reduction, at_once
        rounds = range(reduction.rounds)
        self._segments = [Segment(number, False) for number in rounds[:at_once]]
        for number in rounds:
            self._segments.append(Segment(number, True))
            self._segments += [Segment(later, False) for later in rounds[number + at_once : number + at_once + 1]]
        others = [other for other in range(size) if other != place]
        self._sent, self._received = dict.fromkeys(others, 0), dict.fromkeys(others, 0)
        self._coming: dict[int, list[Segment]] = {}
        # In the last round there may be nothing for this member to add up.
        terms = [[view for other in others for view in reduction.incoming(Segment(n, False), other)] for n in rounds]
        self._missing = [len(others) if views else 0 for views in terms]
        self._weights = [weight] * size
        self._added = 0
        self._add()

    def bytes_to(self, other: int) -> int:
        return sum(_length(self._reduction.outgoing(segment, other)) for segment in self._segments)

    def open(self, other: int, weight: float) -> int:
        self._weights[other] = weight
        return sum(_length(self._reduction.incoming(segment, other)) for segment in self._segments)

    def outgoing(self, other: int) -> list[memoryview]:
        begin = end = self._sent[other]
        while end < len(self._segments) and self._is_ready(self._segments[end]):
            end += 1
        self._sent[other] = end
        return [view for segment in self._segments[begin:end] for view in self._reduction.outgoing(segment, other)]

    def incoming(self, other: int) -> list[memoryview]:
        views: list[memoryview] = []
        while not views and (batch := self._next(other)):
            self._coming[other] = batch
            views = [view for segment in batch for view in self._reduction.incoming(segment, other)]
            if not views:
                self.came(other)
        return views

    def came(self, other: int) -> None:
        self._received[other] += len(self._coming[other])
        for segment in self._coming[other]:
            if not segment.is_result and self._missing[segment.round]:
                self._missing[segment.round] -= 1
        self._add()

    def _add(self) -> None:
        """Add up the rounds all terms of which are there, in their order."""
        while self._added < len(self._missing) and not self._missing[self._added]:
            self._reduction.add(self._added, self._weights)
            self._added += 1

    def _next(self, other: int) -> list[Segment]:
        """What comes next, up to terms, which may complete a round; nothing where there is no memory for these."""
        begin = end = self._received[other]
        while end < len(self._segments) and self._segments[end].is_result:
            end += 1
        if end < len(self._segments) and self._is_ready(self._segments[end]):
            end += 1
        return self._segments[begin:end]

    def is_over(self, other: int) -> bool:
        return self._sent[other] == self._received[other] == len(self._segments)

    def _is_ready(self, segment: Segment) -> bool:
        """Whether results are there, or this member has the memory for the terms, which those of an earlier round had
        before."""
        return segment.round < self._added + (0 if segment.is_result else self._at_once)


def _length(views: Sequence[memoryview]) -> int:
    return sum(view.nbytes for view in views)
