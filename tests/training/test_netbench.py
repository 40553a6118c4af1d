"""Measuring between real processes, on what their training travels on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.conftest import succeeded
from tests.training.harness import Group

MEASURE = """
import signal, threading
from tfos_magic.training import ranks
from tfos_magic.training.context import RunContext, StopSignal
from tfos_magic.training.netbench.measure import measure
from tfos_magic.training.netbench.plan import Plan, plan_rounds

rounds, left_out = plan_rounds(["a", "b", "a"])
context = RunContext("run", collectives, print, StopSignal(), strategy="none")
interrupted, found = False, None
if rank in stopped:
    threading.Timer(1.0, signal.raise_signal, (signal.SIGINT,)).start()
try:
    with ranks.current(context):
        found = measure(Plan(rounds, seconds, [(300_000, "float32"), (10, "float64")]))
except KeyboardInterrupt:
    interrupted = True
total = float(collectives.all_reduce([__import__("tensorflow").constant(1.0)])[0])
"""


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """Ranks 0 and 2 on one host, rank 1 on another, with encryption between them."""
    made = Group(3, hosts=("127.0.0.1", "127.0.0.2"), encrypted=True)
    yield made
    made.close()


def test_pairs_are_measured_in_memory_and_over_sockets_and_sums_over_all(group: Group) -> None:
    given = {"seconds": 0.5, "stopped": []}
    outcomes = succeeded(group.run(MEASURE, "found", "total", inputs=given, bare=True))
    first, second, third = (outcome.values["found"] for outcome in outcomes)
    assert dict(first.wires) == {(0, 2): "shared memory", (0, 1): "TCP sockets"}
    assert second.pairs == third.pairs == {}, "the lower rank of a pair tells"
    for kinds in first.pairs.values():
        assert list(kinds) == ["one number", "uniform", "random", "skewed"]
        for timing in kinds.values():
            assert timing.count >= 1
            assert 0 < timing.p50 <= timing.p95 <= timing.p99
        assert [kinds[kind].bytes for kind in ("uniform", "skewed")] == [3_030_048, 6_030_012]
        assert kinds["one number"].p50 < kinds["skewed"].p50
    for found in (first, second, third):
        assert found.share == 1.0
        assert (found.sums["none"].bytes, found.sums["bfloat16"].bytes) == (1_200_080, 600_080)
    assert all(outcome.values["total"] == 3.0 for outcome in outcomes), "the group is as it was"


def test_an_interrupt_of_one_worker_ends_it_on_all_and_the_group_stays(group: Group) -> None:
    given = {"seconds": 30.0, "stopped": [2]}  # of the first pair
    outcomes = succeeded(group.run(MEASURE, "interrupted", "total", inputs=given, bare=True, seconds=60))
    assert [outcome.values["interrupted"] for outcome in outcomes] == [True] * 3
    assert max(outcome.seconds for outcome in outcomes) < 25
    assert all(outcome.values["total"] == 3.0 for outcome in outcomes)
