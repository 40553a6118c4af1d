"""Rivals measured in turns: each runs once in every round, so that a busy machine is busy for all of them."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import psutil


class Turn(NamedTuple):
    """What one run gave, and took in seconds: on the clock, and of processors, which busy neighbours disturb less."""

    value: Any
    wall: float
    processor: float


def take_turns(
    rivals: Mapping[str, Callable[[], Any]], rounds: int, small: Mapping[str, Callable[[], Any]]
) -> dict[str, list[Turn]]:
    """Run all rivals in every round, in the order given.

    Right before each turn the rival's ``small`` piece of the same work is run and not measured: Spark ends Python
    workers that were idle for a minute, which a slow rival's turn may well last.
    """
    taken: dict[str, list[Turn]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, rival in rivals.items():
            small[name]()
            taken[name].append(_measure(rival))
    return taken


def wall(turns: list[Turn]) -> float:
    """Median seconds on the clock."""
    return statistics.median(turn.wall for turn in turns)


def processor(turns: list[Turn]) -> float:
    """Median seconds of processors."""
    return statistics.median(turn.processor for turn in turns)


def ratio(slow: list[Turn], fast: list[Turn]) -> tuple[float, float]:
    """How many times as long ``slow`` takes: the median over rounds by the clock, and by processor time."""
    by_clock = statistics.median(one.wall / other.wall for one, other in zip(slow, fast, strict=True))
    return by_clock, processor(slow) / processor(fast)


def _measure(rival: Callable[[], Any]) -> Turn:
    before, started = _processor_times(), time.perf_counter()
    value = rival()
    took = time.perf_counter() - started
    return Turn(value, took, sum(now - before.get(pid, 0.0) for pid, now in _processor_times().items()))


def _processor_times() -> dict[int, float]:
    """By process: this one and all below it, the JVM and Spark's Python workers."""
    here = psutil.Process()
    times = {}
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # Spark has ended this worker just now
            times[process.pid] = sum(process.cpu_times()[:2])
    return times
