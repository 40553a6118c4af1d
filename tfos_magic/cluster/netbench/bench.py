"""The plan of a measurement and what came of it, in the kernel, which needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from tfos_magic.cluster import startup
from tfos_magic.cluster.runs.request import Printer
from tfos_magic.cluster.runs.state import RunPhase, RunState
from tfos_magic.errors import UsageError
from tfos_magic.training.netbench.plan import Found, Pair, Plan, Timing, plan_rounds

CELL = "from tfos_magic.training.netbench.measure import measure\nfound = measure(plan)\n"
PAIR_SECONDS = 5.0
TOTAL_SECONDS = 60.0
TENSOR_BYTES = 4 << 20
MEMORY = "shared memory"  # as the wire is called that crosses no host, and is not encrypted


@dataclass(frozen=True)
class PairTimes:
    """Two ``workers``, their ``hosts``, the ``wire`` on which they exchange, ``encrypted`` or not, and by kind of
    message (``one number``, ``uniform``, ``random``, ``skewed``) its :class:`Timing`."""

    workers: Pair
    hosts: tuple[str, str]
    wire: str
    encrypted: bool
    timings: dict[str, Timing]


@dataclass(frozen=True)
class NetBench:
    """What :meth:`TFCluster.netbench` measured among ``size`` workers.

    ``sums`` are those of the gradients of ``model``, of ``bytes`` in all, over all workers, by compression; where only
    a ``share`` of them (0 to 1) was summed, which a slow network made necessary, their seconds are multiplied.
    ``left_out`` pairs of hosts were not measured. In a notebook it shows itself as a table, a picture and advice.
    """

    size: int
    seconds: float
    pairs: list[PairTimes]
    left_out: int
    model: str
    bytes: int
    share: float
    sums: dict[str, Timing]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle: dict[str, str] = resolve_name("tfos_magic.notebook.netbench.bundle:bundle")(self)
        return bundle


class WaitPrinter(Printer):
    """Prints what the first worker prints, and after some seconds what is waited for before that."""

    def __init__(self) -> None:
        self._hear = startup.Waits()

    def update(self, state: RunState) -> None:
        if state.phase in (RunPhase.QUEUED, RunPhase.STARTING):
            self._hear(state.awaited.what if state.awaited is not None else "the workers")


def plan_bench(hosts: Sequence[str], model: Any, seconds: float) -> Plan:
    """What to measure among workers on ``hosts``, by rank.

    Raises :class:`UsageError` for one worker alone, for seconds that are none and for a ``model`` that is none.
    """
    if len(hosts) < 2:
        raise UsageError("One worker has nobody to exchange anything with: %tfos scale 2 or cluster.scale(2) adds one.")
    if not seconds > 0:
        raise UsageError(f"seconds is {seconds!r}: give a number greater than 0.")
    gradients = gradients_of(model)
    rounds, left_out = plan_rounds(hosts)
    turns = len(rounds) + bool(gradients)
    return Plan(rounds, min(float(seconds), TOTAL_SECONDS / turns), gradients, left_out)


def gradients_of(model: Any) -> list[tuple[int, str]]:
    """Elements and dtypes of the gradients of a Keras model, or of so many bytes of float32; none of None."""
    if model is None:
        return []
    if isinstance(model, int) and not isinstance(model, bool) and model >= 4:
        sizes = [TENSOR_BYTES] * (model // TENSOR_BYTES) + [model % TENSOR_BYTES]
        return [(size // 4, "float32") for size in sizes if size >= 4]
    weights = getattr(model, "trainable_weights", None)
    if weights is None:
        raise UsageError(f"{model!r} is neither a Keras model nor a number of bytes from 4.")
    if not weights:
        raise UsageError("The model has no weights to train yet: build it first, by model.build(shape) or a fit.")
    return [(_count(weight.shape), str(getattr(weight.dtype, "name", weight.dtype))) for weight in weights]


def _count(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= int(length)
    return count


def together(found: dict[int, Found], plan: Plan, hosts: Sequence[str], encrypted: bool, model: Any) -> NetBench:
    """What all ranks ``found``, in the order of the plan. Of sums it is what the slowest rank found."""
    pairs = []
    for pair in plan.pairs:
        first = found[pair[0]]
        wire, where = first.wires[pair], (hosts[pair[0]], hosts[pair[1]])
        pairs.append(PairTimes(pair, where, wire, encrypted and wire != MEMORY, dict(first.pairs[pair])))
    sums = {
        compression: max((each.sums[compression] for each in found.values()), key=lambda timing: timing.p50)
        for compression in found[0].sums
    }
    name = "" if isinstance(model, int) else str(getattr(model, "name", ""))
    return NetBench(len(hosts), plan.seconds, pairs, plan.left_out, name, plan.bytes, found[0].share, sums)
