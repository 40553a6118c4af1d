"""What is to be measured, and what was found: known to the kernel and to workers, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Pair = tuple[int, int]
"""Two ranks, the lower one first."""

MOST_ROUNDS = 12
ONE_NUMBER = "one number"
COMPRESSIONS = ("none", "bfloat16")


@dataclass(frozen=True)
class Plan:
    """The pairs of each of the ``rounds``, which are measured at once; a round, and sums, may take ``seconds``.

    ``gradients`` are those of a step, the numbers of their elements with their dtypes. ``left_out`` pairs of hosts are
    in no round.
    """

    rounds: Sequence[Sequence[Pair]]
    seconds: float
    gradients: Sequence[tuple[int, str]] = ()
    left_out: int = 0

    @property
    def pairs(self) -> list[Pair]:
        """All that are measured."""
        return [pair for pairs in self.rounds for pair in pairs]

    @property
    def bytes(self) -> int:
        """Of the gradients of a step."""
        return sum(bytes_of(*gradient) for gradient in self.gradients)


@dataclass(frozen=True)
class Timing:
    """``count`` messages of ``bytes`` on the average, and the seconds that one took: half of them, 95 and 99 in a
    hundred took no more than these."""

    count: int
    bytes: float
    p50: float
    p95: float
    p99: float
    bytes_per_second: float

    @classmethod
    def of(cls, seconds: Sequence[float], sizes: Sequence[int]) -> Timing:
        """From the seconds and the bytes of each message."""
        p50, p95, p99 = (float(value) for value in np.percentile(seconds, [50, 95, 99]))
        return cls(len(seconds), float(np.mean(sizes)), p50, p95, p99, sum(sizes) / max(sum(seconds), 1e-9))


@dataclass(frozen=True)
class Found:
    """What a rank found: by pair, of which it is the lower one, the timings of each kind of message and what they
    travelled on; by compression the sums of a step's gradients, of which ``share`` (0 to 1) was summed."""

    pairs: Mapping[Pair, Mapping[str, Timing]] = field(default_factory=dict)
    wires: Mapping[Pair, str] = field(default_factory=dict)
    sums: Mapping[str, Timing] = field(default_factory=dict)
    share: float = 1.0


def bytes_of(count: int, dtype: str) -> int:
    """Of ``count`` elements of a dtype that TensorFlow has by that name."""
    return count * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)


def plan_rounds(hosts: Sequence[str]) -> tuple[list[list[Pair]], int]:
    """Rounds of pairs that do not get in each other's way, and how many pairs of hosts are in none.

    ``hosts`` are the workers' by rank. Within a host all share memory, so the first two workers of each host stand for
    it. Between hosts the first workers exchange what all have, so they are paired: in a round each host has one
    partner, as in a tournament by the circle method. There are ``MOST_ROUNDS`` of these at most: of more than 12 hosts
    each has 12 partners at most.
    """
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    within = [(ranks[0], ranks[1]) for ranks in members.values() if len(ranks) > 1]
    between = list(_tournament([ranks[0] for ranks in members.values()]))
    rounds = [pairs for pairs in (within, *between[:MOST_ROUNDS]) if pairs]
    return rounds, sum(map(len, between[MOST_ROUNDS:]))


def _tournament(ranks: Sequence[int]) -> Iterator[list[Pair]]:
    circle: list[int | None] = [*ranks, *([None] * (len(ranks) % 2))]
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def bytes_sent(gradients: Iterable[tuple[int, str]], compression: str) -> int:
    """Of gradients by count and dtype, of which those in float32 travel in the dtype of a ``compression``."""
    compressed = {"float32": compression} if compression != "none" else {}
    return sum(bytes_of(count, compressed.get(dtype, dtype)) for count, dtype in gradients)
