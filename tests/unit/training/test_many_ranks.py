"""Many ranks on one host: they meet, and their memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest

from tfos_magic.training.allreduce import AllReduce
from tfos_magic.training.allreduce.group import meet
from tfos_magic.training.allreduce.handshake import listen
from tfos_magic.training.allreduce.shared_memory import SLOT_BYTES, memory_bytes, slot_bytes

SIZE = 12


@pytest.fixture(scope="module")
def at_once() -> Iterator[Callable[[Callable[[int], Any]], list[Any]]]:
    """Calls a function with each rank at the same time."""
    with ThreadPoolExecutor(SIZE) as threads:

        def call(function: Callable[[int], Any]) -> list[Any]:
            calls = [threads.submit(function, rank) for rank in range(SIZE)]
            assert not wait(calls, timeout=60).not_done
            return [done.result() for done in calls]

        yield call


@pytest.fixture(scope="module")
def ranks(at_once: Callable[[Callable[[int], Any]], list[Any]]) -> Iterator[list[AllReduce]]:
    with ExitStack() as opened:
        held = [opened.enter_context(listen("127.0.0.1:0")) for _ in range(SIZE)]
        addresses = ["{}:{}".format(*listener.getsockname()) for listener in held]
        for listener in held:
            listener.close()
        yield [opened.enter_context(closing(rank)) for rank in at_once(lambda r: meet(r, addresses, "s", 30.0, True))]


@pytest.mark.soak
def test_sums_and_rows_that_no_slot_holds(ranks, at_once) -> None:
    count = slot_bytes(SIZE) // 4 * 2 + 5
    own = [np.random.default_rng(rank).integers(0, 9, count).astype("f4") for rank in range(SIZE)]
    sums = [np.empty(count, "f4") for _ in range(SIZE)]
    assert at_once(lambda rank: ranks[rank].reduce([own[rank]], [sums[rank]], 0, 1.0)) == [SIZE] * SIZE
    for total in sums:
        np.testing.assert_array_equal(total, sum(own))
    rows = at_once(lambda rank: [part.copy() for part in ranks[rank].gather([own[rank].view("u1")], 7)])
    for parts in rows:
        for part, of_rank in zip(parts, own, strict=True):
            np.testing.assert_array_equal(part.view("f4"), of_rank)


def test_memory_of_many_ranks_is_that_of_eight() -> None:
    assert slot_bytes(2) == slot_bytes(8) == SLOT_BYTES
    assert all(slot_bytes(size) % 4096 == 0 for size in range(2, 257))
    assert all(memory_bytes(size) <= 70 << 20 for size in range(2, 257))
