"""Ranks on several hosts: sums, weighted means, deaths, strangers. Other addresses of the loopback stand for hosts."""

from __future__ import annotations

import hmac
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.training.conftest import succeeded
from tests.training.harness import DATA, Group
from tests.training.test_shared_memory import KIND, ROWS, SOCKETS, WAIT

TWO_AND_TWO = ("127.0.0.1", "127.0.0.2")
THREE_AND_ONE = ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2")
SUMS = (
    KIND
    + """
import time
import ml_dtypes
import numpy as np
import tensorflow as tf

size, random, wrong = collectives.size, np.random.default_rng(3), []
graph = tf.function(collectives.all_reduce, autograph=False)
for dtype in ["float16", "bfloat16", "float32", "float64", "int32", "int64"]:
    tables = [random.integers(-9, 9, (size, count)).astype(np.int8) for count in (0, 1, 997, 600_007)]
    own = [tf.cast(table[rank], dtype) for table in tables]
    for mode in (collectives.all_reduce, graph):
        for table, total in zip(tables, mode(own), strict=True):
            if not np.array_equal(total.numpy(), tf.cast(table.astype(np.int64).sum(0), dtype).numpy()):
                wrong.append((dtype, table.shape, mode is graph))
own = np.random.default_rng(rank).normal(size=300_003).astype("float32")
weight = [3.0, 0.0, 2.0, 1.0][rank]
values = np.full_like(own, np.nan) if weight == 0 else own
mean = tf.function(lambda: collectives.mean([tf.constant(values)], tf.constant(weight), [tf.constant(1.0)]))
means = [tensor.numpy() for tensor in mean()]
sent = collectives.sent
collectives.barrier()
waited, exchanged = collectives.waited, collectives.exchanged
for many in (1, 3_000_000):  # in one round, and in several
    time.sleep(0.5 * (rank == 3))
    collectives.all_reduce([tf.ones(many)])
waited, exchanged = collectives.waited - waited, collectives.exchanged - exchanged
"""
)


@pytest.fixture(
    params=[
        (TWO_AND_TWO, True),
        pytest.param((TWO_AND_TWO, False), marks=pytest.mark.soak),
        pytest.param((THREE_AND_ONE, False), marks=pytest.mark.soak),
    ],
    ids=["2 + 2 ranks, encrypted", "2 + 2 ranks", "3 + 1 ranks"],
)
def four(request: pytest.FixtureRequest) -> Iterator[Group]:
    hosts, encrypted = request.param
    group = Group(4, hosts=hosts, encrypted=encrypted)
    yield group
    group.close()


def test_sums_means_weights_and_deaths_of_ranks_on_two_hosts(four: Group) -> None:
    outcomes = succeeded(four.run(SUMS, "kind", "wrong", "own", "means", "sent", "waited", "exchanged", bare=True))
    weights = [3.0, 0.0, 2.0, 1.0]
    expected = sum(o.values["own"].astype("float64") * w for o, w in zip(outcomes, weights, strict=True)) / sum(weights)
    for outcome in outcomes:
        assert outcome.values["kind"] == SOCKETS
        assert outcome.values["wrong"] == []
        assert outcome.values["means"][1] == 4.0
        assert outcome.values["sent"] > 0
        assert outcome.values["exchanged"] > 0
        assert np.array_equal(outcome.values["means"][0], outcomes[0].values["means"][0])
        np.testing.assert_allclose(outcome.values["means"][0], expected, atol=1e-6)
    assert outcomes[3].values["waited"] < 0.3
    assert all(outcome.values["waited"] > 0.8 for outcome in outcomes[:3])
    assert [outcome.values["wrong"] for outcome in succeeded(four.run(ROWS, "wrong", bare=True))] == [[]] * 4
    cell = WAIT.format(late="os.kill(os.getpid(), 9)", wait="graph()")
    cell = "import os\nimport time\nbegan = time.time()\n" + cell
    outcomes = four.run(cell, "raised", "began", "ended", bare=True, inputs={"late": 3})
    assert outcomes[3].kind == "Died"
    for outcome in outcomes[:3]:
        assert "ended" in outcome.values["raised"]
        assert outcome.values["ended"] - outcome.values["began"] < 5.0


@pytest.mark.soak
def test_who_waits_for_another_host_hears_of_a_death_on_its_own() -> None:
    group = Group(4, hosts=TWO_AND_TWO)
    try:
        late = """
    threading.Event().wait(6.0)
elif rank == 2:
    threading.Timer(0.5, os.kill, [os.getpid(), 9]).start()
"""
        cell = "import os\nimport time\nbegan = time.time()\n" + WAIT.format(late=late, wait="graph()")
        outcomes = group.run(cell, "raised", "began", "ended", bare=True, inputs={"late": 3})
        assert [outcome.kind == "Died" for outcome in outcomes] == [False, False, True, False]
        assert "rank 2 ended" in outcomes[0].values["raised"]
        assert outcomes[0].values["ended"] - outcomes[0].values["began"] < 4.0
    finally:
        group.close()


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "encrypted"])
def apart(request: pytest.FixtureRequest) -> Iterator[Group]:
    group = Group(2, hosts=TWO_AND_TWO, encrypted=request.param)
    yield group
    group.close()


@pytest.mark.soak
def test_ranks_on_two_hosts_give_the_weights_of_one_process(apart: Group, groups) -> None:
    cell = (
        DATA
        + """
model = mlp()
model.compile("adam", from_logits)
model.fit(x, y, batch_size=29, epochs=2, verbose=0)
weights = model.get_weights()
"""
    )
    expected = groups.plain(cell, "weights").values["weights"]
    for outcome in succeeded(apart.run(cell, "weights")):
        for mine, plain in zip(outcome.values["weights"], expected, strict=True):
            assert np.abs(mine - plain).max() <= 1e-5


def test_ranks_of_two_hosts_at_different_operations_are_told_so() -> None:
    group = Group(2, hosts=TWO_AND_TWO)
    try:
        cell = "import tensorflow as tf\ncollectives.all_reduce([tf.zeros([3 + rank])])\n"
        outcomes = group.run(cell, bare=True)
        assert [outcome.kind for outcome in outcomes] == ["ClusterError", "ClusterError"]
        assert any("is at a different operation" in outcome.error for outcome in outcomes)
    finally:
        group.close()


@pytest.mark.soak
def test_who_does_not_know_the_secret_is_refused_on_either_side() -> None:
    from tfos_magic.training.allreduce import handshake

    listener = handshake.listen("127.0.0.1:0")
    address = "{}:{}".format(*listener.getsockname())
    refused: list[bool] = []

    def strangers_then_peer() -> None:
        deadline = time.monotonic() + 10.0
        for secret in (b"wrong", b"right"):
            try:
                handshake.connect(address, 7, "data", secret, deadline).close()
                refused.append(False)
            except PermissionError:
                refused.append(True)
        with socket.create_connection(listener.getsockname()) as forger:
            forger.sendall(b"tfos-1" + bytes(2) + b"data\0\0\0\0" + bytes(16))
            forger.recv(48)
            forger.sendall(hmac.digest(b"wrong", b"", "sha256"))
            refused.append(forger.recv(1) == b"")

    thread = threading.Thread(target=strangers_then_peer, name="tfos-test-peer")
    thread.start()
    with listener:
        came = [
            rank for rank, peer in _until_timeout(handshake.accept(listener, "data", b"right", time.monotonic() + 3.0))
        ]
    thread.join(10)
    assert came == [7]
    assert refused == [True, False, True]


def _until_timeout(peers):
    try:
        for rank, peer in peers:
            peer.close()
            yield rank, peer
    except TimeoutError:
        return
