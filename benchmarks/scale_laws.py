"""Formulas that are fitted to what was measured, and what follows from them where nothing was: for scale.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tfos_magic.training.allreduce.shared_memory import SCATTER_BYTES
from tfos_magic.training.allreduce.tcp_peers import PAIR_BYTES, SHARE_BYTES, WHOLE_BYTES
from tfos_magic.training.logs.progress import MOST_A_SECOND
from tfos_magic.transport.messages import StrategyOptions


class Point(NamedTuple):
    """Where a formula has a value: ``n`` ranks, ``size`` bytes to be added up, and what happened in ``seconds``:
    ``epochs``, ``messages``, bytes of ``checkpoints``, and ``runs``."""

    n: int
    size: float = 0.0
    seconds: float = 0.0
    epochs: float = 0.0
    messages: float = 0.0
    checkpoints: float = 0.0
    runs: int = 0

    @property
    def rounds(self) -> int:
        """In how many rounds ranks share out the addition; 0 where each adds up all by itself."""
        whole_bytes = PAIR_BYTES if self.n == 2 else WHOLE_BYTES
        return 0 if self.size <= whole_bytes else math.ceil(self.size / (self.n * SHARE_BYTES))

    @property
    def sent(self) -> float:
        """Bytes that leave a rank for others, without headers."""
        return self.size * (2 * (self.n - 1) / self.n if self.rounds else self.n - 1)


TERMS: dict[str, Callable[[Point], float]] = {
    "1": lambda p: 1.0,
    "(n-1)": lambda p: p.n - 1,
    "(n-1)^2": lambda p: (p.n - 1) ** 2,
    "(n-1) r": lambda p: (p.n - 1) * p.rounds,
    "(n-1) s": lambda p: (p.n - 1) * (p.n > 2 and p.size > SCATTER_BYTES),
    "b": lambda p: p.sent,
    "P": lambda p: p.size,
    "P/n s": lambda p: p.size / p.n * (p.n > 2 and p.size > SCATTER_BYTES),
    "n": lambda p: p.n,
    "n (n-1)": lambda p: p.n * (p.n - 1),
    "T": lambda p: p.seconds,
    "n T": lambda p: p.n * p.seconds,
    "n E": lambda p: p.n * p.epochs,
    "m": lambda p: p.messages,
    "c": lambda p: p.checkpoints,
    "R": lambda p: p.runs,
}


@dataclass(frozen=True)
class Law:
    """A value as a sum of terms, each by its factor; ``residuals`` are the errors in parts of what was measured."""

    factors: Mapping[str, float]
    residuals: Sequence[float]

    @classmethod
    def fit(cls, terms: str, measured: Sequence[tuple[Point, float]]) -> Law:
        """Least squares of the errors, each as a part of what was measured.

        A term whose factor would be below zero is left out: nothing here gets cheaper by having more of it.
        """
        names = terms.split(", ")
        weights = np.array([1 / value if value else 1.0 for _, value in measured])
        values = np.array([value for _, value in measured])
        while True:
            table = np.array([[TERMS[name](point) for name in names] for point, _ in measured], float)
            factors = np.linalg.lstsq(table * weights[:, None], values * weights, rcond=None)[0]
            if len(names) == 1 or factors.min() >= 0:
                break
            names.pop(int(factors.argmin()))
        errors = (table @ factors - values) / np.where(values, values, 1.0)
        return cls(dict(zip(names, factors.tolist(), strict=True)), errors.tolist())

    def __call__(self, point: Point) -> float:
        return sum(factor * TERMS[name](point) for name, factor in self.factors.items())

    def of(self, *names: str) -> Law:
        """The part of it that these terms are."""
        return Law({name: factor for name, factor in self.factors.items() if name in names}, ())

    def __str__(self) -> str:
        kept = [(name, factor) for name, factor in self.factors.items() if abs(factor) > 1e-12]
        return " + ".join(f"{factor:.4g}" + ("" if name == "1" else f" {name}") for name, factor in kept) or "0"

    @property
    def error(self) -> str:
        """The root of the mean square, and the largest of the residuals."""
        square = math.sqrt(sum(error**2 for error in self.residuals) / len(self.residuals))
        return f"{square:.1%}, at most {max(map(abs, self.residuals)):.1%}"


class Laws(NamedTuple):
    """What the page foretells by: bytes, processor seconds of a rank, for one sum by TCP; signs of life and messages of
    progress to the kernel, and its processor seconds."""

    bytes: Law
    processor: Law
    heartbeats: Law
    progress: Law
    kernel: Law


class Step(NamedTuple):
    """Seconds that a step's exchange takes of each rank: on the wire, and of its processor by what they are for."""

    wire: float
    touching: float
    calling: float

    @property
    def exchange(self) -> float:
        return self.wire + self.touching + self.calling

    def computing(self, seconds: float) -> float:
        """The part of a step that computes for so many ``seconds``."""
        return seconds / (seconds + self.exchange)

    @property
    def most(self) -> str:
        costs = {
            "bytes on the wire": self.wire,
            "copying and adding up": self.touching,
            "calls to its many peers": self.calling,
        }
        return max(costs, key=lambda name: costs[name])


def step_of(laws: Laws, n: int, weights: int, rate: float) -> Step:
    """The exchange of a step, bucket after bucket: so many float32 ``weights``, ``rate`` in bits per second."""
    size = 4 * weights
    buckets = math.ceil(size / (StrategyOptions().bucket_mb * (1 << 20)))
    point = Point(n, size / buckets)
    parts = 8 * laws.bytes(point) / rate, laws.processor.of("b")(point)
    return Step(*(buckets * part for part in (*parts, laws.processor(point) - parts[1])))


def load_of(laws: Laws, n: int) -> tuple[float, float]:
    """Messages that reach the kernel in a second of training, and the part of a core that it takes to hear them.

    However many ranks there are, all send at most so much progress.
    """
    second = Point(n, seconds=1.0)
    messages = laws.heartbeats.of("n T")(second) + min(MOST_A_SECOND, laws.progress.of("n T")(second))
    return messages, laws.kernel(Point(n, seconds=1.0, messages=messages))


def first(holds: Callable[[int], bool], most: int = 1 << 14) -> int | None:
    """The least power of two for which ``holds``."""
    return next((n for n in (1 << k for k in range(1, most.bit_length())) if holds(n)), None)
