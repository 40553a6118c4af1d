"""The spool: what is kept, what is refused, and that nothing stays behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tfos_magic.columns.columns import Column, FeedPlan
from tfos_magic.errors import DataError, FeedError, SpoolFull
from tfos_magic.feed.agent.disk_quota import GIGABYTE, DiskQuota
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.transport.messages import SpoolHandle

PLAN = FeedPlan((Column("x", "scalar", "int64"),))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(str(tmp_path))
    yield made
    made.close()


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(values, pa.int64())], schema=pa.schema([pa.field("x", pa.int64(), nullable=False)])
    )


def kept(handle: SpoolHandle) -> list[int]:
    """The values a handle leads to, read through its path."""
    fd = os.open(handle.path, os.O_RDONLY)
    try:
        blocks = [(os.pread(fd, size, offset), first, count) for offset, size, first, count in handle.blocks]
    finally:
        os.close(fd)
    schema = rows().schema
    batches = [pa.ipc.read_record_batch(pa.py_buffer(block), schema).slice(first, n) for block, first, n in blocks]
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_the_share_of_a_rank_is_kept_in_partition_order(spool: Spool) -> None:
    spool.open("f", 0, 1, PLAN.schema)
    spool.append("f", 1, 9, rows(3, 4))
    spool.append("f", 0, 8, rows(1))
    spool.append("f", 0, 8, rows(2))
    held, size = spool.commit("f", [(1, 9, 2), (0, 8, 2), (2, 7, 0)])
    handle = spool.handle("f")
    assert held == 4
    assert size == sum(block[1] for block in handle.blocks)
    assert kept(handle) == [1, 2, 3, 4]
    assert handle.partitions == [[0, 2], [1, 2], [2, 0]]
    assert all(offset % 64 == 0 for offset, *_ in handle.blocks)


def test_attempts_that_did_not_win_are_not_kept(spool: Spool) -> None:
    spool.open("f", 0, 1, PLAN.schema)
    spool.append("f", 0, 1, rows(1, 2))  # failed after two of three rows
    spool.append("f", 0, 2, rows(1, 2, 3))
    spool.append("f", 0, 3, rows(1, 2, 3))  # a speculative copy
    assert spool.rows() == {"f": 8}
    assert spool.commit("f", [(0, 2, 3)])[0] == 3
    assert kept(spool.handle("f")) == [1, 2, 3]
    assert spool.rows() == {"f": 3}


def test_of_every_tail_the_row_is_kept_that_falls_to_the_rank(spool: Spool) -> None:
    for rank, expected in enumerate([[10, 13, 30, 33], [11, 14, 31], [12, 20, 32]]):
        spool.open("f", rank, 3, PLAN.schema)
        spool.append("f", 0, 1, rows(10 + rank))
        spool.append_tail("f", 0, 1, rows(13, 14))
        spool.append_tail("f", 1, 2, rows(20))
        spool.append("f", 2, 3, rows(30 + rank))
        spool.append_tail("f", 2, 3, rows(33))
        held, _ = spool.commit("f", [(0, 1, 5), (1, 2, 1), (2, 3, 4)])
        assert kept(spool.handle("f")) == expected
        assert held == len(expected)


def test_a_tail_that_did_not_come_is_missed(spool: Spool) -> None:
    spool.open("f", 1, 2, PLAN.schema)
    spool.append("f", 0, 1, rows(1))
    with pytest.raises(FeedError, match="0 of its tail instead of 1"):
        spool.commit("f", [(0, 1, 3)])


@pytest.mark.parametrize("total", [2, 6])
def test_a_commit_that_does_not_match_what_came_is_refused(spool: Spool, total: int) -> None:
    spool.open("f", 1, 2, PLAN.schema)
    spool.append("f", 0, 1, rows(1, 2))
    with pytest.raises(FeedError, match="rank 1 holds 2 rows of partition 0 instead of"):
        spool.commit("f", [(0, 1, total)])
    with pytest.raises(FeedError, match="not complete yet"):
        spool.handle("f")


def test_late_rows_unknown_feeds_and_failed_feeds_are_refused(spool: Spool) -> None:
    with pytest.raises(FeedError, match="not open here"):
        spool.append("g", 0, 1, rows(1))
    spool.open("f", 0, 1, PLAN.schema)
    spool.append("f", 0, 1, rows(1))
    spool.commit("f", [(0, 1, 1)])
    with pytest.raises(FeedError, match="are too late"):
        spool.append("f", 0, 1, rows(2))
    spool.open("h", 0, 1, PLAN.schema)
    spool.fail("h", DataError("column 'x' has nulls"))
    with pytest.raises(DataError, match="column 'x' has nulls"):
        spool.append("h", 0, 1, rows(1))
    spool.fail("unknown", DataError("ignored"))


def test_the_file_has_no_name_and_its_space_is_freed_on_release(spool: Spool, tmp_path: Path) -> None:
    spool.open("f", 0, 1, PLAN.schema)
    spool.append("f", 0, 1, rows(*range(100_000)))
    spool.commit("f", [(0, 1, 100_000)])
    path = spool.handle("f").path
    assert list(tmp_path.iterdir()) == []
    status = os.stat(path)
    assert status.st_nlink == 0
    assert status.st_mode & 0o077 == 0
    assert status.st_size >= 800_000
    assert spool.bytes >= 800_000
    assert len(_open_files(tmp_path)) == 1
    spool.release("f")
    spool.release("f")
    assert spool.bytes == 0
    assert spool.rows() == {}
    assert _open_files(tmp_path) == []


def _open_files(folder: Path) -> list[str]:
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return [link for link in links if link.startswith(str(folder))]


def test_a_directory_without_nameless_files_leaves_no_name_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse_nameless(path: Any, flags: int, *mode: Any, **how: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *mode, **how)

    monkeypatch.setattr(os, "open", refuse_nameless)
    spool = Spool(str(tmp_path))
    spool.open("f", 0, 1, PLAN.schema)
    assert list(tmp_path.iterdir()) == []
    spool.append("f", 0, 1, rows(1))
    spool.close()


def test_a_directory_that_cannot_be_written_is_named() -> None:
    with pytest.raises(FeedError, match=r"/proc/self: .*spark\.local\.dir"):
        Spool("/proc/self").open("f", 0, 1, PLAN.schema)


FULL_DISK = """
import resource, sys, pyarrow as pa
from tfos_magic.errors import FeedError
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.columns.columns import Column, FeedPlan

plan = FeedPlan((Column("x", "scalar", "int64"),))
schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
batch = pa.record_batch([pa.array(range(100_000), pa.int64())], schema=schema)
spool = Spool(sys.argv[1])
spool.open("good", 0, 1, plan.schema)
spool.append("good", 0, 1, batch)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
spool.open("big", 0, 1, plan.schema)
try:
    for _ in range(3):
        spool.append("big", 0, 1, batch)
except FeedError as error:
    print(error)
print(spool.rows()["big"], spool.commit("good", [(0, 1, 100_000)])[0])
"""


def test_a_full_disk_is_a_clear_error_and_harms_no_other_feed(tmp_path: Path, project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said, counts = done.stdout.splitlines()
    assert said.startswith(f"no space left for the feed in {tmp_path} on {socket.gethostname()}")
    assert re.search(r"the next rows need [\d.]+ MB, [\d.]+ MB are free", said)
    assert counts == "200000 100000"


def test_threads_that_write_at_once_do_not_mix_their_rows(spool: Spool) -> None:
    spool.open("f", 0, 1, PLAN.schema)

    def write(partition: int) -> None:
        for start in range(0, 2000, 100):
            spool.append(
                "f", partition, partition, rows(*range(partition * 10_000 + start, partition * 10_000 + start + 100))
            )

    threads = [threading.Thread(target=write, args=(p,), name=f"tfos-test-{p}") for p in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    spool.commit("f", [(p, p, 2000) for p in range(8)])
    assert kept(spool.handle("f")) == [p * 10_000 + i for p in range(8) for i in range(2000)]


def test_a_release_under_writers_lets_them_end_and_refuses_the_rest(spool: Spool) -> None:
    spool.open("f", 0, 1, PLAN.schema)
    started, refused = threading.Event(), threading.Event()

    def write() -> None:
        try:
            for _ in range(100_000):
                spool.append("f", 0, 1, rows(*range(1000)))
                started.set()
        except FeedError:
            refused.set()

    thread = threading.Thread(target=write, name="tfos-test-writer")
    thread.start()
    assert started.wait(10)
    spool.release("f")
    thread.join(10)
    assert refused.is_set()


def test_opening_a_feed_again_drops_what_it_held(spool: Spool) -> None:
    spool.open("f", 0, 1, PLAN.schema)
    spool.append("f", 0, 1, rows(1))
    spool.open("f", 0, 1, PLAN.schema)
    assert spool.rows() == {"f": 0}


MEGABYTE_ROWS = 1 << 17


def test_a_feed_beyond_the_budget_fails_alone_and_gives_its_room_back(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), limit=4 << 20)
    spool.open("f", 0, 1, PLAN.schema)
    spool.append("f", 0, 1, rows(*range(MEGABYTE_ROWS)))
    spool.commit("f", [(0, 1, MEGABYTE_ROWS)])
    spool.open("g", 0, 1, PLAN.schema)
    with pytest.raises(SpoolFull, match=r"may use 4\.2 MB together.*--spool-gb"):
        spool.append("g", 0, 1, rows(*range(4 * MEGABYTE_ROWS)))
    assert spool.budget.used <= 4 << 20
    spool.release("g")
    assert spool.budget.used < 2 << 20
    spool.open("h", 0, 1, PLAN.schema)
    spool.append("h", 0, 1, rows(*range(2 * MEGABYTE_ROWS)))
    spool.close()
    assert spool.budget.used == 0


def test_rows_without_room_wait_until_another_feed_is_released(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), limit=4 << 20)
    asked: list[tuple[str, list[str]]] = []
    pressed = threading.Event()

    def ask(feed_id: str, held: list[str]) -> None:
        asked.append((feed_id, held))
        pressed.set()

    spool.need_room = ask
    for feed_id in ("old", "new"):
        spool.open(feed_id, 0, 1, PLAN.schema)
    spool.append("old", 0, 1, rows(*range(2 * MEGABYTE_ROWS)))

    def write() -> None:
        spool.append("new", 0, 1, rows(*range(3 * MEGABYTE_ROWS)))

    thread = threading.Thread(target=write, name="tfos-test-writer")
    thread.start()
    assert pressed.wait(10)
    assert spool.rows()["new"] == 0
    spool.release("old")
    thread.join(10)
    assert spool.rows() == {"new": 3 * MEGABYTE_ROWS}
    assert asked == [("new", ["old", "new"])]
    spool.close()


def test_rows_without_room_are_refused_when_nothing_can_go(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), limit=1 << 20)
    spool.need_room = lambda feed_id, held: threading.Thread(
        target=spool.fail, args=(feed_id, SpoolFull("no room")), name="tfos-test-refusal"
    ).start()
    spool.open("f", 0, 1, PLAN.schema)
    with pytest.raises(SpoolFull, match="no room"):
        spool.append("f", 0, 1, rows(*range(3 * MEGABYTE_ROWS)))
    spool.close()


def disk(free: int, total: int) -> Any:
    return os.statvfs_result((1, 1, total, free, free, 0, 0, 0, 0, 255))


@pytest.mark.parametrize(
    ("limit", "free", "total", "allowed"),
    [
        (None, 100 * GIGABYTE, 200 * GIGABYTE, 50 * GIGABYTE),
        (80 * GIGABYTE, 100 * GIGABYTE, 200 * GIGABYTE, 80 * GIGABYTE),
        (80 * GIGABYTE, 20 * GIGABYTE, 200 * GIGABYTE, 10 * GIGABYTE),
        (None, 12 * GIGABYTE, 200 * GIGABYTE, 2 * GIGABYTE),
        (80 * GIGABYTE, 10 * GIGABYTE, 10 * GIGABYTE, 9 * GIGABYTE),
        (None, 64 << 20, 64 << 20, 32 << 20),
        (None, 1 << 20, 200 * GIGABYTE, 0),
    ],
)
def test_the_last_of_the_disk_is_never_taken(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, free: int, total: int, allowed: int
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: disk(free, total))
    budget = DiskQuota("/anywhere", limit)
    assert budget.limit == allowed
    assert not budget.take(allowed + 1)
    assert budget.take(allowed)
