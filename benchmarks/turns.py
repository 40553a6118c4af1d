"""Rivals measured in turns: each runs once in every round, so that a busy machine is busy for all of them."""

from __future__ import annotations

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


def take_turns(rivals: Mapping[str, Callable[[], Any]], rounds: int, warm_ups: int = 1) -> dict[str, list[Turn]]:
    """Run all rivals in every round, in the order given; the first ``warm_ups`` rounds are not kept."""
    taken: dict[str, list[Turn]] = {name: [] for name in rivals}
    for number in range(rounds + warm_ups):
        for name, rival in rivals.items():
            turn = _measure(rival)
            if number >= warm_ups:
                taken[name].append(turn)
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
    before, started = _processor_time(), time.perf_counter()
    value = rival()
    return Turn(value, time.perf_counter() - started, _processor_time() - before)


def _processor_time() -> float:
    """Of this process and of all below it: the JVM and Spark's Python workers, which stay from round to round."""
    here = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in [here, *here.children(recursive=True)])
