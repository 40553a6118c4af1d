"""What programs find by TensorFlowOnSpark's names: roles, paths, rows, and modules that are one by two names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic import tensorflowonspark
from tfos_magic.errors import UsageError
from tfos_magic.tensorflowonspark import TFNode, dfutil, gpu_info
from tfos_magic.tensorflowonspark.TFCluster import deal_roles
from tfos_magic.transport.messages import RowsHandle


class Rows:
    """Blocks of rows as a queue gives them, and the answers to them."""

    def __init__(self, *blocks: list[Any]) -> None:
        self._blocks, self.answers, self.closed, self.read = blocks, [], False, ""
        self.unanswered, self.missed = 0, []
        self._queue = TFNode._Queue(self)

    def queue(self, name: str) -> TFNode._Queue:
        return self._queue

    def note_read(self, name: str) -> None:
        self.read = name

    def blocks(self) -> Iterator[list[Any]]:
        yield from self._blocks

    def answer(self, results: list[Any]) -> None:
        self.answers += results
        self.unanswered -= len(results)

    def note_given(self, rows: int) -> None:
        self.unanswered += rows

    def go_on(self) -> None:
        self.missed.append(self.unanswered)
        self.unanswered = 0

    def close(self) -> None:
        self.closed = True


def batches(feed: TFNode.DataFeed, size: int) -> list[Any]:
    taken = []
    while not feed.should_stop():
        taken.append(feed.next_batch(size))
    return taken


def test_batches_of_training_reach_over_partitions() -> None:
    feed = TFNode.DataFeed(Rows([1, 2, 3], [], [4, 5]), train_mode=True)
    assert batches(feed, 2) == [[1, 2], [3, 4], [5]]


def test_batches_of_inference_end_with_their_partition() -> None:
    feed = TFNode.DataFeed(Rows([1, 2, 3], [], [], [4, 5], []), train_mode=False)
    assert [batch for batch in batches(feed, 2) if batch] == [[1, 2], [3], [4, 5]]


def test_answers_that_are_missing_where_a_program_goes_on_after_a_partition_are_told_of() -> None:
    rows = Rows([1, 2, 3], [], [4, 5], [])
    feed = TFNode.DataFeed(rows, train_mode=False)
    while not feed.should_stop():
        feed.batch_results(feed.next_batch(2)[:1])
    assert rows.answers == [1, 3, 4]
    assert rows.missed == [1, 1]


def test_feeds_of_one_queue_go_on_where_the_other_has_stopped() -> None:
    rows = Rows([1, 2, 3, 4], [], [5, 6, 7], [], [8])
    first, then = (TFNode.DataFeed(rows, train_mode=mode) for mode in (True, False))
    assert first.next_batch(3) == [1, 2, 3]
    assert [batch for batch in batches(then, 2) if batch] == [[4], [5, 6], [7], [8]]
    assert (first.next_batch(3), first.should_stop()) == ([], True)


def test_a_mapping_gives_columns_by_tensor_in_the_order_of_the_columns_names() -> None:
    feed = TFNode.DataFeed(Rows([("image 1", 1), ("image 2", 2)]), input_mapping={"b_label": "y", "a_image": "x"})
    assert feed.next_batch(2) == {"x": ["image 1", "image 2"], "y": [1, 2]}


def test_answers_are_sent_and_a_feed_that_is_terminated_takes_no_more() -> None:
    rows = Rows([1, 2], [3])
    feed = TFNode.DataFeed(rows)
    feed.batch_results(number * 2 for number in feed.next_batch(2))
    feed.terminate()
    assert (rows.answers, rows.closed, feed.should_stop()) == ([2, 4], True, True)


def test_a_program_that_returns_before_it_has_read_all_rows_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TFNode, "RowFeed", lambda handle, name: Rows([1, 2], [3]))
    manager, told = TFNode.RowsManager(RowsHandle("run", "socket", "token")), []
    feeds = [TFNode.DataFeed(manager, qname_in=name) for name in ("left", "ended", "read")]
    feeds[0].next_batch(1)
    feeds[1].terminate()
    batches(feeds[2], 3)
    manager.note_unread(told.append)
    assert [("'left'" in text, "dropped" in text) for text in told] == [(True, True)]


@pytest.mark.parametrize(
    ("asked", "roles"),
    [
        ((3, 0, None, False), ["worker:0", "worker:1", "worker:2"]),
        ((3, 0, "chief", False), ["chief:0", "worker:0", "worker:1"]),
        ((5, 1, "master", True), ["ps:0", "master:0", "evaluator:0", "worker:0", "worker:1"]),
        ((1, 0, "chief", False), ["chief:0"]),
    ],
)
def test_roles_are_dealt_in_order(asked: tuple[Any, ...], roles: list[str]) -> None:
    assert [f"{job}:{task}" for job, task in deal_roles(*asked)] == roles


@pytest.mark.parametrize("asked", [(1, 1, None, False), (2, 1, "chief", True), (0, 0, None, False)])
def test_too_few_nodes_are_refused(asked: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="are not enough"):
        deal_roles(*asked)


@pytest.mark.parametrize(
    ("file_system", "path", "expected"),
    [
        ("hdfs://name:8020", "/data", "hdfs://name:8020/data"),
        ("file://", "/data", "file:///data"),
        ("file://", "data", "file:///home/user/data"),
        ("hdfs://name", "s3a://bucket/data", "s3a://bucket/data"),
    ],
)
def test_paths_get_the_scheme_of_the_file_system(file_system: str, path: str, expected: str) -> None:
    assert TFNode.hdfs_path(SimpleNamespace(defaultFS=file_system, working_dir="/home/user"), path) == expected


def test_modules_are_one_by_two_names_and_those_that_are_gone_say_what_to_write() -> None:
    program = """
import tfos_magic.tensorflowonspark as ours
ours.install()
import tensorflowonspark
from tensorflowonspark import TFNode
import tensorflowonspark.dfutil as dfutil
assert tensorflowonspark is ours and TFNode is ours.TFNode and dfutil is ours.dfutil
assert TFNode.DataFeed.__module__ == "tfos_magic.tensorflowonspark.TFNode"
try:
    from tensorflowonspark import reservation
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "tensorflowonspark.reservation is not here: the cluster forms by itself: TFCluster.run.\n", (
        done.stderr
    )


def test_the_original_that_is_imported_already_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "tensorflowonspark", SimpleNamespace(__name__="tensorflowonspark", __file__="x.py")
    )
    with pytest.raises(UsageError, match=r"imported already, from x\.py: restart Python"):
        tensorflowonspark.install()


def test_records_are_made_of_rows_and_read_again() -> None:
    pytest.importorskip("tensorflow")
    dtypes = [("a", "array<double>"), ("n", "bigint"), ("t", "string"), ("u", "binary")]
    rows = [{"a": [1.0, 2.0], "n": 3, "t": "text", "u": b"\x00\x01"}]
    (made,) = dfutil.fromTFExample(dfutil.toTFExample(dtypes)(rows), binary_features=["u"])
    assert made.asDict() == {"a": [1.0, 2.0], "n": 3, "t": "text", "u": bytearray(b"\x00\x01")}


def test_gpus_are_those_that_spark_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert (gpu_info.is_gpu_available(), gpu_info.get_gpus(1)) == (True, "2")
    with pytest.raises(RuntimeError, match="3 GPUs are requested and this node has 2"):
        gpu_info.get_gpus(3)
