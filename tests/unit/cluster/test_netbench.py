"""What ``netbench`` plans, and how what it found is told. No worker is there; ``tests/training`` has them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tfos_magic.cluster.netbench.bench import NetBench, gradients_of, plan_bench, together
from tfos_magic.errors import UsageError
from tfos_magic.notebook.netbench.bundle import SHOWN, bundle, notes_of
from tfos_magic.notebook.netbench.command import model_of
from tfos_magic.training.netbench.plan import Found, Plan, Timing, plan_rounds

KINDS = ("one number", "uniform", "random", "skewed")


def timing(seconds: float = 0.01, size: int = 1_000_000) -> Timing:
    return Timing.of([seconds] * 98 + [2 * seconds, 5 * seconds], [size] * 100)


def bench(workers: int = 2, exchange: float = 0.04, halved: float = 0.02, share: float = 1.0) -> NetBench:
    hosts = [f"host{rank}" for rank in range(workers)]
    plan = plan_bench(hosts, 64_000_000, 5.0)
    found = {
        rank: Found(
            {p: {k: timing(0.01 + p[1] / 1000) for k in KINDS} for p in plan.pairs if p[0] == rank},
            {p: "TCP sockets" for p in plan.pairs if p[0] == rank},
            {"none": timing(exchange + rank * 1e-6), "bfloat16": timing(halved)},
            share,
        )
        for rank in range(workers)
    }
    return together(found, plan, hosts, True, 64_000_000)


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 12])
def test_every_two_hosts_meet_once_and_no_host_has_two_partners_at_a_time(hosts: int) -> None:
    rounds, left_out = plan_rounds([f"host{number}" for number in range(hosts)])
    pairs = [pair for each in rounds for pair in each]
    assert sorted(pairs) == [(a, b) for a in range(hosts) for b in range(a + 1, hosts)]
    assert left_out == 0
    for each in rounds:
        busy = [rank for pair in each for rank in pair]
        assert len(busy) == len(set(busy))


def test_of_very_many_hosts_each_has_twelve_partners() -> None:
    rounds, left_out = plan_rounds([f"host{number}" for number in range(100)])
    assert len(rounds) == 12
    assert sum(map(len, rounds)) + left_out == 100 * 99 // 2
    assert {sum(rank in pair for pairs in rounds for pair in pairs) for rank in range(100)} == {12}


def test_two_workers_stand_for_each_host_and_the_first_for_it_among_hosts() -> None:
    rounds, left_out = plan_rounds(["a", "b", "a", "b", "a", "c"])
    assert rounds[0] == [(0, 2), (1, 3)]
    assert sorted(pair for pairs in rounds[1:] for pair in pairs) == [(0, 1), (0, 5), (1, 5)]
    assert left_out == 0
    assert plan_rounds(["a"] * 64) == ([[(0, 1)]], 0)


def test_all_takes_a_minute_at_most() -> None:
    assert plan_bench(["a", "b"], None, 5.0).seconds == 5.0
    plan = plan_bench([f"host{number}" for number in range(40)], 1000, 20.0)
    assert plan.seconds * (len(plan.rounds) + 1) == pytest.approx(60.0)


def test_gradients_are_those_of_weights_that_are_trained_or_so_many_bytes() -> None:
    weights = [SimpleNamespace(shape=(3, 5), dtype="float32"), SimpleNamespace(shape=(), dtype="float64")]
    assert gradients_of(SimpleNamespace(trainable_weights=weights)) == [(15, "float32"), (1, "float64")]
    assert Plan([], 1.0, gradients_of(10_000_000)).bytes == 10_000_000
    assert gradients_of(None) == []
    with pytest.raises(UsageError, match="build it first"):
        gradients_of(SimpleNamespace(trainable_weights=[]))
    for wrong in ("model", True, -1, 2.5):
        with pytest.raises(UsageError, match="neither a Keras model nor a number of bytes"):
            gradients_of(wrong)
    with pytest.raises(UsageError, match=r"nobody to exchange anything with: %tfos scale 2"):
        plan_bench(["a"], None, 5.0)
    with pytest.raises(UsageError, match="greater than 0"):
        plan_bench(["a", "b"], None, 0.0)


def test_the_line_names_a_model_or_bytes() -> None:
    names: dict[str, Any] = {"model": SimpleNamespace(trainable_weights=[1])}
    assert model_of("model", names) is names["model"]
    assert [model_of(text, names) for text in ("64MB", "1.5k", "12", None)] == [64_000_000, 1500, 12, None]
    with pytest.raises(UsageError, match="model"):
        model_of("modle", names)


def test_percentiles_and_pace_are_those_of_all_messages() -> None:
    seconds = [number / 1000 for number in range(1, 101)]
    made = Timing.of(seconds, [1000] * 100)
    assert (made.p50, made.p95, made.p99) == tuple(np.percentile(seconds, [50, 95, 99]))
    assert made.bytes_per_second == pytest.approx(100_000 / sum(seconds))


def test_a_table_a_picture_and_advice_are_shown() -> None:
    shown = bundle(bench(3))
    lines = shown["text/plain"].splitlines()
    assert lines[0].split() == ["workers", "hosts", "over", "message", "bytes", "p50", "p95", "p99", "each", "way"]
    assert len([line for line in lines if "TCP sockets, encrypted" in line]) == 3
    (sums,) = [line for line in lines if line.startswith("all 3")]
    assert re.search(r"gradients +1\.0 MB +40 ms", sums)
    assert lines[-1].startswith(
        "A step under sync takes 40 ms to exchange 64.0 MB of gradients, which is a fifth of its time or more"
    )
    assert "160 ms or less" in lines[-1]
    assert "about 20 ms with --compression bfloat16, or about 2.5 ms with --strategy local --sync-every 16" in lines[-1]
    assert shown["text/html"].count("<rect") == 3
    assert "0-2" in shown["text/html"]


@pytest.mark.parametrize(
    ("computing", "said"),
    [(0.01, "about 12.5 ms with --strategy local --sync-every 16"), (1.0, "takes 4%.")],
)
def test_where_a_run_told_what_a_step_computes_the_advice_goes_by_it(computing: float, said: str) -> None:
    text = bundle(bench(), computing)["text/plain"]
    assert said in text
    assert ("--strategy local" in text) == (computing < 0.1)


def test_compression_that_saves_nothing_is_not_advised() -> None:
    assert "bfloat16" not in " ".join(notes_of(bench(halved=0.039)))
    assert "about 2.5 ms with --strategy local" in bundle(bench(halved=0.039))["text/plain"]


def test_of_very_many_pairs_the_slowest_are_shown_and_what_was_not_measured_is_said() -> None:
    text = bundle(bench(40, share=0.25))["text/plain"]
    assert len([line for line in text.splitlines() if "TCP sockets" in line]) == SHOWN
    assert f"Of 240 pairs the slowest {SHOWN} are shown." in text
    assert "540 pairs of hosts were not measured" in text
    assert "Only 25% of the gradients were summed" in text
