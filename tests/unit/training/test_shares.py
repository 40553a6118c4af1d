"""Sums between hosts, share after share: whatever sizes, shares and rounds at once, all members have the sums."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest

from tests.soak import every
from tfos_magic.training.allreduce import tcp_peers
from tfos_magic.training.allreduce.group import link
from tfos_magic.training.allreduce.handshake import listen
from tfos_magic.training.allreduce.tcp_peers import TcpPeers

pytestmark = pytest.mark.slow

Case = tuple[list[list[Any]], int, list[float]]


@pytest.fixture(params=every(3, [3, 2, 5]))
def members(request: pytest.FixtureRequest) -> Iterator[list[TcpPeers]]:
    size, secret = request.param, b"secret"
    with ExitStack() as opened, ThreadPoolExecutor(size) as threads:
        listeners = [opened.enter_context(listen(f"127.0.0.{place + 1}:0")) for place in range(size)]
        addresses = ["{}:{}".format(*listener.getsockname()) for listener in listeners]
        linking = [
            threads.submit(link, place, range(size), addresses, listeners[place], secret, 30.0) for place in range(size)
        ]
        yield [opened.enter_context(closing(TcpPeers(linked.result()))) for linked in linking]


def case_of(number: int, size: int) -> Case:
    """Each member's arrays, how many of them are averaged, and the members' weights."""
    draws = random.Random(number)
    kinds = sorted((draws.choice(["f4", "f8", "i8"]), draws.choice([0, 1, 7, 100, 5000])) for _ in range(4))
    floats = sum(kind[0] == "f" for kind, _ in kinds)
    values = np.random.default_rng(number)
    arrays = [[values.integers(0, 9, count).astype(kind) for kind, count in kinds] for _ in range(size)]
    return arrays, draws.choice([0, floats]), [draws.choice([0.0, 1.0, 3.0]) for _ in range(size)]


def expected(case: Case) -> list[Any]:
    arrays, averaged, weights = case
    total = sum(weights) or 1.0
    return [
        sum(member[i] * (weight / total if i < averaged else 1) for member, weight in zip(arrays, weights, strict=True))
        for i in range(len(arrays[0]))
    ]


def test_all_members_have_the_sums_with_any_shares_and_rounds_at_once(
    members: list[TcpPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(members)
    for limit in ("WHOLE_BYTES", "PAIR_BYTES"):
        monkeypatch.setattr(tcp_peers, limit, 64)
    monkeypatch.setattr(tcp_peers, "SHORT", 0.0)
    with ThreadPoolExecutor(size) as threads:
        for number in range(60):
            monkeypatch.setattr(tcp_peers, "SHARE_BYTES", [64, 256, 4096, 65536][number % 4])
            monkeypatch.setattr(tcp_peers, "RATE", [0.0, 1e7, 1e10][number % 3])  # one round at once, some, and all
            case = case_of(number, size)
            results = [[np.full_like(array, -1) for array in member] for member in case[0]]
            summing = [
                threads.submit(member.reduce, case[0][place], results[place], case[1], case[2][place])
                for place, member in enumerate(members)
            ]
            if late := wait(summing, timeout=30).not_done:
                members[0].abort("the test waits no longer")
            assert not late, number
            for done in summing:
                done.result()
            for member in results:
                for result, sums in zip(member, expected(case), strict=True):
                    np.testing.assert_allclose(result, sums, rtol=1e-6)
                np.testing.assert_equal(member, results[0])
