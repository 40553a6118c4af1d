"""The wire of ranks that share a host's memory: its sums, its failures, and what it leaves behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import succeeded
from tests.training.harness import DATA, Group

SOCKETS = "shared memory within hosts, TCP sockets between them"
KIND = "kind = collectives.wire.name\n"


@pytest.mark.parametrize("size", every(2, [3, 2]))
def test_sums_are_exact_for_all_dtypes_and_for_sizes_from_none_to_more_than_a_slot(groups, size: int) -> None:
    cell = (
        KIND
        + """
import ml_dtypes
import numpy as np
import tensorflow as tf
from tfos_magic.training.allreduce.shared_memory import SCATTER_BYTES, SLOT_BYTES

counts = [0, 1, 2, 3, 997, SCATTER_BYTES // 4 + 1, SLOT_BYTES // 4, SLOT_BYTES // 4 + 1, 3 * SLOT_BYTES // 4 + 7]
dtypes = ["float16", "bfloat16", "float32", "float64", "int32", "int64"]
random = np.random.default_rng(3)
values = [random.integers(-9, 9, (size, count)).astype(np.int8) for count in counts]
wrong = []
graph = tf.function(collectives.all_reduce, autograph=False)
for dtype in dtypes:
    own = [tf.cast(table[rank], dtype) for table in values]
    for mode in (collectives.all_reduce, graph):
        for table, total in zip(values, mode(own), strict=True):
            right = tf.cast(table.astype(np.int64).sum(0), dtype)
            if total.dtype != right.dtype or not np.array_equal(total.numpy(), right.numpy()):
                wrong.append((mode is graph, dtype, table.shape))
mixed = [tf.cast(tf.fill((1, 3), rank + 1), dtype) for dtype in dtypes] + [tf.constant(float(rank))]
kept = [int(tf.reduce_max(t)) for t in graph(mixed)] + [t.shape == m.shape for t, m in zip(graph(mixed), mixed)]
"""
    )
    for outcome in succeeded(groups[size].run(cell, "wrong", "kind", "kept", bare=True, inputs={"size": size})):
        assert outcome.values["kind"] == "shared memory"
        assert outcome.values["wrong"] == []
        total = sum(range(1, size + 1))
        assert outcome.values["kept"] == [total] * 6 + [total - size] + [True] * 7


ROWS = """
import numpy as np
import tensorflow as tf

size, wrong = collectives.size, []
graph = tf.function(collectives.concat, autograph=False, reduce_retracing=True)


def rows_of(rank, count):
    random = np.random.default_rng(1000 * rank + count)
    values = random.normal(size=(count, 3, 50)).astype("float32")
    return [values, random.integers(-9, 9, count), random.random(count) > 0.5]


for counts in [(1, 0, 2, 5), (0, 0, 0, 0), (9_000, 300, 0, 20_000), (30, 500, 300, 1), (0, 1, 0, 7)]:
    right = [np.concatenate(parts) for parts in zip(*(rows_of(r, counts[r]) for r in range(size)))]
    for mode in (collectives.concat, graph):
        for total, rows in zip(mode([tf.constant(t) for t in rows_of(rank, counts[rank])]), right, strict=True):
            if total.dtype != rows.dtype or not np.array_equal(total.numpy(), rows):
                wrong.append((counts, rows.dtype, mode is graph))
"""


@pytest.mark.parametrize("size", every(2, [3, 2]))
def test_rows_of_all_dtypes_are_put_together_whether_or_not_a_slot_holds_them(groups, size: int) -> None:
    for outcome in succeeded(groups[size].run(ROWS, "wrong", bare=True)):
        assert outcome.values["wrong"] == []


@pytest.mark.parametrize("size", every(2, [3, 2]))
def test_sums_of_floats_have_the_same_bits_on_all_ranks(groups, size: int) -> None:
    cell = """
import numpy as np
import tensorflow as tf

own = np.random.default_rng(rank).normal(size=100_003).astype("float32")
graph = tf.function(collectives.all_reduce, autograph=False)
totals = [graph([tf.constant(own)])[0].numpy() for _ in range(5)]
"""
    outcomes = succeeded(groups[size].run(cell, "own", "totals", bare=True))
    in_order = np.copy(outcomes[0].values["own"])
    for outcome in outcomes[1:]:
        in_order += outcome.values["own"]
    for outcome in outcomes:
        assert all(np.array_equal(total, in_order) for total in outcome.values["totals"])


def test_sums_keep_their_values_while_memory_of_others_is_taken_again(groups) -> None:
    cell = """
import numpy as np
import tensorflow as tf

graph = tf.function(lambda n: collectives.all_reduce([tf.fill([500_000], n)])[0], autograph=False)
variable, kept, views, places = tf.Variable(tf.zeros([500_000])), [], [], set()
for n in range(12):
    total = graph(tf.constant(float(n)))
    places.add(total.numpy().ctypes.data)
    if n % 3 == 0:
        kept.append(total)
    if n % 4 == 1:
        views.append(total.numpy()[100:200])
    if n == 5:
        variable.assign(total)
found = [sorted(set(values)) for values in [*(np.unique(t.numpy()) for t in kept), *views, variable.numpy()]]
places = len(places)
"""
    for outcome in succeeded(groups[2].run(cell, "found", "places", bare=True)):
        assert outcome.values["found"] == [[2.0 * n] for n in (0, 3, 6, 9, 1, 5, 9, 5)]
        assert outcome.values["places"] < 12


def test_many_sums_in_a_row_keep_step_whoever_is_slow(groups) -> None:
    cell = """
import random
import threading
import numpy as np

chance, pause, wrong = random.Random(rank), threading.Event(), 0
for n in range(300):
    if chance.random() < 0.05:
        pause.wait(0.003)
    count = (1, 30_000, 1_500_000)[n % 3 if n % 50 == 2 else n % 2]
    total = collectives.wire.sum_arrays(np.full(count, n + rank, np.float32))[0]
    wrong += int((total != 3 * n + 3).sum())
"""
    assert [outcome.values["wrong"] for outcome in succeeded(groups[3].run(cell, "wrong", bare=True))] == [0, 0, 0]


def test_branches_of_a_graph_sum_in_the_same_order_on_all_ranks(groups) -> None:
    cell = """
import tensorflow as tf

def branches(x):
    left = x
    for _ in range(rank * 30):
        left = tf.linalg.matmul(left, left) * 0.0 + 1.0
    return [collectives.all_reduce([left])[0][0, 0], collectives.all_reduce([x[:2] * 2])[0][0, 0]]

graph = tf.function(branches, autograph=False)
results = [[float(v) for v in graph(tf.ones((64, 64)))] for _ in range(10)]
"""
    for outcome in succeeded(groups[2].run(cell, "results", bare=True)):
        assert outcome.values["results"] == [[2.0, 4.0]] * 10


def test_ranks_at_different_operations_are_told_so() -> None:
    group = Group(2)
    try:
        cell = """
import tensorflow as tf

collectives.all_reduce([tf.zeros([3 + rank])])
"""
        outcomes = group.run(cell, bare=True)
        assert [outcome.kind for outcome in outcomes] == ["ClusterError", "ClusterError"]
        assert any("is at a different operation" in outcome.error for outcome in outcomes)
    finally:
        group.close()


@pytest.fixture
def three() -> Iterator[Group]:
    group = Group(3)
    yield group
    group.close()


WAIT = """
import threading
import time
import tensorflow as tf

raised, ended = "", 0.0
graph = tf.function(lambda: collectives.all_reduce([tf.ones([10])])[0], autograph=False)
graph()
if rank == late:
    {late}
try:
    with collectives.waiting("a step"):
        for _ in range(2):  # the first still succeeds for one who comes late to a sum that the others gave up
            {wait}
except Exception as error:
    raised, ended = f"{{type(error).__name__}}: {{error}}", time.time()
"""


@pytest.mark.parametrize(
    ("late", "wait"), [(0, "graph()"), (2, "collectives.wire.sum([tf.ones([10])])")], ids=["graph", "eager"]
)
def test_a_killed_peer_raises_at_once(three: Group, wait: str, late: int) -> None:
    cell = WAIT.format(late="os.kill(os.getpid(), 9)", wait=wait)
    cell = "import os\nimport time\nbegan = time.time()\n" + cell
    outcomes = three.run(cell, "raised", "began", "ended", bare=True, inputs={"late": late})
    assert outcomes[late].kind == "Died"
    for rank, outcome in enumerate(outcomes):
        if rank != late:
            assert outcome.values["raised"].startswith(f"ClusterError: rank {rank} waited for a step with all 3 ranks")
            assert f"rank {late} ended" in outcome.values["raised"]
            assert outcome.values["ended"] - outcome.values["began"] < 2.0


@pytest.mark.soak
def test_abort_from_another_thread_wakes_this_rank_and_its_peers(three: Group) -> None:
    cell = WAIT.format(late="threading.Event().wait(4.0)", wait="graph()")
    cell = cell.replace("try:", "if rank == 0:\n    threading.Timer(0.2, collectives.abort, ['enough']).start()\ntry:")
    outcomes = succeeded(three.run(cell, "raised", "ended", bare=True, inputs={"late": 2}))
    assert all("enough" in outcome.values["raised"] for outcome in outcomes)
    assert outcomes[1].values["ended"] - outcomes[0].values["ended"] < 1.0
    assert outcomes[2].values["ended"] - outcomes[0].values["ended"] > 2.0


@pytest.mark.soak
def test_a_late_peer_is_waited_for_until_the_timeout_which_says_what_for() -> None:
    group = Group(2, collective_seconds=1.5)
    try:
        cell = WAIT.format(late="threading.Event().wait(4.0)", wait="graph()")
        outcomes = succeeded(group.run(cell, "raised", bare=True, inputs={"late": 1}))
        assert "no answer within 1.5 s while rank 0 waited for a step" in outcomes[0].values["raised"]
        assert "rank 0 aborted" in outcomes[1].values["raised"]
    finally:
        group.close()


def test_the_memory_is_in_no_directory_and_gone_when_all_are_killed() -> None:
    group = Group(2)
    files = [
        target
        for process in group.processes
        for entry in Path(f"/proc/{process.pid}/fd").iterdir()
        if "tfos" in (target := os.readlink(entry))
    ]
    mapped = [Path(f"/proc/{process.pid}/maps").read_text().count("tfos-wire") for process in group.processes]
    for process in group.processes:
        process.kill()
    group.close()
    assert all(target.endswith("(deleted)") for target in files)
    assert mapped == [1, 1]
    assert not [entry for place in ("/dev/shm", "/tmp") for entry in Path(place).glob("*tfos-wire*")]


@pytest.mark.soak
def test_a_forked_child_does_not_hide_the_death_of_its_parent() -> None:
    group = Group(2)
    try:
        late = """
    if os.fork() == 0:
        signal.alarm(8)  # the child lives on without its parent, for a while
        signal.pause()
    os.kill(os.getpid(), 9)
"""
        cell = "import os\nimport signal\nimport time\nbegan = time.time()\n" + WAIT.format(late=late, wait="graph()")
        outcomes = group.run(cell, "raised", "began", "ended", bare=True, inputs={"late": 1})
        assert "rank 1 ended" in outcomes[0].values["raised"]
        assert outcomes[0].values["ended"] - outcomes[0].values["began"] < 4.0
    finally:
        group.close()


@pytest.mark.parametrize(
    "prepare",
    [
        "if rank == 0:\n    wires.listen = refuse\n",
        "if rank == 1:\n    wires.join = refuse\n",
    ],
    ids=["no socket", "no connection"],
)
def test_all_ranks_use_sockets_where_one_cannot_share(prepare: str) -> None:
    refuse = """
from tfos_magic.training.allreduce import shared_memory as wires
wires.SETUP_SECONDS = 2.0
def refuse(*args, **kwargs):
    raise PermissionError("not here")
"""
    group = Group(2, prepare=refuse + prepare)
    try:
        cell = KIND + "import tensorflow as tf\ntotal = float(collectives.all_reduce([tf.constant(1.0 + rank)])[0])\n"
        outcomes = succeeded(group.run(cell, "kind", "total", bare=True))
        assert [outcome.values for outcome in outcomes] == [{"kind": SOCKETS, "total": 3.0}] * 2
    finally:
        group.close()


def test_gpus_sum_by_our_own_means_unless_the_ring_is_asked_for() -> None:
    gpus = "import tfos_magic.training.collectives as collectives\ncollectives.has_gpu = lambda: True\n"
    group = Group(2, prepare=gpus)
    try:
        kinds = succeeded(group.run(KIND, "kind", bare=True))
        assert "TensorFlow's ring" not in [outcome.values["kind"] for outcome in kinds]
    finally:
        group.close()


def test_the_ring_is_refused_where_a_rank_has_no_gpu() -> None:
    with pytest.raises(RuntimeError, match="nccl needs a GPU for each worker, and one has none"):
        Group(2, nccl=True)


def test_the_ring_gives_the_weights_of_one_process_too(groups) -> None:
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
    gpus = "import tfos_magic.training.collectives as collectives\ncollectives.has_gpu = lambda: True\n"
    group = Group(2, prepare=gpus, nccl=True)
    try:
        kinds = succeeded(group.run(KIND, "kind", bare=True))
        assert [outcome.values["kind"] for outcome in kinds] == ["TensorFlow's ring"] * 2
        for outcome in succeeded(group.run(cell, "weights")):
            for mine, plain in zip(outcome.values["weights"], expected, strict=True):
                assert np.abs(mine - plain).max() <= 1e-5
    finally:
        group.close()


def test_a_stranger_at_the_socket_is_refused_and_the_mesh_forms_all_the_same() -> None:
    from tfos_magic.training.allreduce import unix_peers

    invitation = unix_peers.GroupInvitation.derive(os.urandom(16), "here")
    listener = unix_peers.listen(invitation)
    file = unix_peers.nameless_file(4096)
    joined: list[str] = []

    def stranger_then_peer() -> None:
        forged = unix_peers.GroupInvitation(invitation.name, b"?" * unix_peers.TOKEN_BYTES)
        for offered in (forged, invitation):
            try:
                connection, descriptor = unix_peers.join(offered, 1, [0, 1], 5.0)
            except OSError:
                joined.append("refused")
                continue
            connection.meet(7)
            joined.append("met")
            connection.close()
            os.close(descriptor)

    thread = threading.Thread(target=stranger_then_peer, name="tfos-test-peer")
    thread.start()
    try:
        connection = unix_peers.host(listener, invitation, [0, 1], file, 10.0)
        connection.meet(7)
        thread.join(10)
        connection.close()
    finally:
        listener.close()
        os.close(file)
    assert joined == ["refused", "met"]
