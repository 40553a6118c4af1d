"""Measuring on a worker: every worker of the cluster calls :func:`measure` at the same time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import cycle

import numpy as np
import tensorflow as tf

from tfos_magic.training import ranks
from tfos_magic.training.allreduce import Array
from tfos_magic.training.allreduce.arrays import ArrayWire
from tfos_magic.training.allreduce.shared_memory import SharedMemory
from tfos_magic.training.allreduce.tcp_peers import TcpPeers
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.context import RunContext
from tfos_magic.training.netbench.plan import COMPRESSIONS, ONE_NUMBER, Found, Pair, Plan, Timing, bytes_of, bytes_sent
from tfos_magic.training.step import Step
from tfos_magic.training.strategies.sync import SyncStrategy
from tfos_magic.transport.messages import StrategyOptions

MEETING_SECONDS = 15.0
SMALL, MEDIUM, LARGE = 3, 2_500, 250_000
"""Numbers of float32: 12 bytes, 10 kB and 1 MB."""
MOST_TIMES = 100_000

Stopping = Callable[[], bool]


def measure(plan: Plan) -> Found:
    """Measure what ``plan`` says, and give what this rank found. Prints on rank 0 what goes on.

    An interrupt ends it on all ranks after the same exchange, so that the group stays as it is.
    """
    context = ranks.context()
    collectives = context.collectives
    found = Found({}, {}, {})
    with _stopping_together() as stopping:
        for number, pairs in enumerate(plan.rounds):
            _meet(collectives, stopping, f"round {number + 1} of {len(plan.rounds)}: workers {_words(pairs)}")
            with ExitStack() as opened:
                for pair in (pair for pair in pairs if collectives.rank in pair):  # one at most
                    found = _with_pair(found, collectives, pair, plan.seconds, stopping, opened)
                _meet(collectives, stopping)  # none leaves a pair while the other reads its last sum
        if plan.gradients:
            _meet(collectives, stopping, f"sums over {collectives.size} workers")
            found = _with_sums(found, context, plan, stopping)
    return found


@contextmanager
def _stopping_together() -> Iterator[Stopping]:
    """Put an interrupt off: the block gives whether there was one, and raises it where all ranks know."""
    asked = threading.Event()
    previous = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, previous)


def _meet(collectives: Collectives, stopping: Stopping, about: str = "") -> None:
    """Wait for all ranks; raises KeyboardInterrupt on all of them where one was asked to end."""
    if collectives.gather([int(stopping())]).any():
        raise KeyboardInterrupt
    if about and collectives.rank == 0:
        print(about, flush=True)


def _words(pairs: Sequence[Pair], shown: int = 4) -> str:
    named = ", ".join(f"{first}-{second}" for first, second in pairs[:shown])
    return f"{named} and {len(pairs) - shown} more pairs" if len(pairs) > shown else named


def _with_pair(
    found: Found, collectives: Collectives, pair: Pair, seconds: float, stopping: Stopping, opened: ExitStack
) -> Found:
    """Measure with the other worker of a pair, on a connection that is ``opened`` until all are through."""
    other = pair[0] if collectives.rank == pair[1] else pair[1]
    both = opened.enter_context(closing(collectives.pair(other, MEETING_SECONDS)))
    timings = _timings(both, seconds, stopping)
    if collectives.rank != pair[0] or timings is None:
        return found
    wire = SharedMemory.name if both.wire.name == SharedMemory.name else TcpPeers.name
    return replace(found, pairs={**found.pairs, pair: timings}, wires={**found.wires, pair: wire})


def _timings(both: Collectives, seconds: float, stopping: Stopping) -> dict[str, Timing] | None:
    """The seconds that sums of each kind of message take the two; None where they were asked to end."""
    timings = {}
    kinds = payloads()
    for kind, messages in kinds.items():
        timing = _repeat(both, messages, seconds / len(kinds), stopping)
        if timing is None:
            return None
        timings[kind] = timing
    return timings


def payloads() -> dict[str, list[list[Array]]]:
    """Messages by kind, each a list of float32 arrays that is summed at once, as a bucket of gradients is.

    Kinds and sizes follow TF-gRPC-Bench (Biswas, Lu and Panda 2018): ten buffers, small (10 bytes there, 12 here),
    medium (10 kB) and large (1 MB), in equal parts, at random, or skewed, 60 % of them large and 10 % small.
    """
    random = np.random.default_rng(0).choice([SMALL, MEDIUM, LARGE], (4, 10)).tolist()
    return {
        ONE_NUMBER: [[]],
        "uniform": [_arrays([SMALL, MEDIUM, LARGE] * 3 + [SMALL])],
        "random": [_arrays(counts) for counts in random],
        "skewed": [_arrays([LARGE] * 6 + [MEDIUM] * 3 + [SMALL])],
    }


def _arrays(counts: Sequence[int]) -> list[Array]:
    return [np.ones(count, np.float32) for count in counts]


def _repeat(
    both: Collectives, messages: Sequence[Sequence[Array]], seconds: float, stopping: Stopping
) -> Timing | None:
    """Sum ``messages`` in turn until the time is over, by either's clock: with each travels whether it is.

    What comes first, when memory and plans are made, does not count.
    """
    wire = both.wire
    assert isinstance(wire, ArrayWire)
    taken, sizes, ends = list[float](), list[int](), time.monotonic() + seconds
    for number, message in enumerate(cycle(messages)):
        over = number > len(messages) and (time.monotonic() > ends or number > MOST_TIMES)
        state = np.array([over, stopping()], np.int32)
        begun = time.perf_counter()
        with both.waiting("a sum of two workers"):
            *_, states = wire.sum_arrays(*message, state)
        if number >= len(messages):
            taken.append(time.perf_counter() - begun)
            sizes.append(sum(array.nbytes for array in message) or state.nbytes)
        if states[1]:
            return None
        if states[0]:
            return Timing.of(taken, sizes)
    raise AssertionError("messages never end")


def _with_sums(found: Found, context: RunContext, plan: Plan, stopping: Stopping) -> Found:
    """The sums of gradients as strategy ``sync`` makes them in each step, one compression after the other."""
    seconds = plan.seconds / len(COMPRESSIONS)
    kept = _part(plan.gradients, _slowest(found, context.collectives) * seconds / 4)
    share = sum(bytes_of(*each) for each in kept) / plan.bytes
    sums = {}
    for compression in COMPRESSIONS:
        timing = _sums(context, kept, compression, seconds, stopping)
        scaled = {name: getattr(timing, name) / share for name in ("p50", "p95", "p99")}
        sums[compression] = replace(timing, bytes=bytes_sent(plan.gradients, compression), **scaled)
    return replace(found, sums=sums, share=share)


def _slowest(found: Found, collectives: Collectives) -> int:
    """Bytes per second of the slowest pair of all, by messages that are large."""
    mine = [int(kinds["skewed"].bytes_per_second) for kinds in found.pairs.values()]
    return min(pace for pace in collectives.gather([min(mine, default=0)])[:, 0].tolist() if pace)


def _part(gradients: Sequence[tuple[int, str]], most: float) -> list[tuple[int, str]]:
    """The first of the gradients, of so many bytes at ``most``, so that a slow network does not take for ever."""
    kept = []
    for count, dtype in gradients:
        width = bytes_of(1, dtype)
        kept.append((min(count, max(1, int(most // width))), dtype))
        most -= count * width
        if most <= 0:
            break
    return kept


def _sums(
    context: RunContext, gradients: Sequence[tuple[int, str]], compression: str, seconds: float, stopping: Stopping
) -> Timing:
    """Sum them in a graph, as training does, until the time is over on any rank; the first time does not count."""
    collectives, taken = context.collectives, list[float]()
    strategy = SyncStrategy(replace(context, options=StrategyOptions(compression=compression)))
    step = Step(tf.ones([]), tf.zeros([2]), None, collectives)
    tensors = [tf.ones([count], dtype) for count, dtype in gradients]
    combine = tf.function(lambda: strategy.combine(step, tensors), autograph=False)
    collectives.align()
    with collectives.waiting("the first sum"):
        combine()
    ends = time.monotonic() + seconds
    while True:
        begun = time.perf_counter()
        with collectives.waiting("a sum of gradients"):
            combine()
        taken.append(time.perf_counter() - begun)
        asked, over = collectives.gather([int(stopping()), int(time.monotonic() > ends)]).max(axis=0).tolist()
        if asked:
            raise KeyboardInterrupt
        if over:
            return Timing.of(taken, [sum(bytes_of(*each) for each in gradients)] * len(taken))
