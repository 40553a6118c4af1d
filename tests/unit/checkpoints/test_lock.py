"""A run that is under way is not resumed beside itself, and one that crashed can be at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpoints.test_store import checkpoint, labels, put, where  # noqa: F401
from tfos_magic.checkpoints import lock
from tfos_magic.checkpoints.directory import CheckpointFiles
from tfos_magic.checkpoints.lock import Mark, own_mark
from tfos_magic.checkpoints.store import CheckpointStore
from tfos_magic.errors import UsageError
from tfos_magic.this_host import _begun

HOLDER = """
import sys, time
from tests.unit.checkpoints.test_store import checkpoint, put
from tfos_magic.checkpoints.store import CheckpointStore

store = CheckpointStore(sys.argv[1])
put(store, checkpoint(0, 1))
print("holds", flush=True)
time.sleep(600)
"""


def files_of(store: CheckpointStore) -> CheckpointFiles:
    assert isinstance(store._files, CheckpointFiles)
    return store._files


def mark_of(store: CheckpointStore) -> Mark:
    found = lock.read(files_of(store), files_of(store).run)
    assert found is not None
    return found


def test_a_run_that_is_under_way_is_not_resumed_until_it_ends(where: str) -> None:  # noqa: F811
    with CheckpointStore(where) as store:
        put(store, checkpoint(0, 1))
        with pytest.raises(UsageError) as caught:
            CheckpointStore(where, resume=True)
        for words in (files_of(store).run, f"process {os.getpid()}", socket.gethostname(), " since 20", "--resume"):
            assert words in str(caught.value)
        with CheckpointStore(where) as other:  # another run beside it is nothing to refuse
            assert labels(other) == []
    with CheckpointStore(where, resume=True) as store:
        assert labels(store) == ["fit0-epoch1-step0"]
    assert files_of(store).read_mark(files_of(store).run) == b""


def test_a_run_under_way_that_has_no_checkpoint_yet_counts_as_well(where: str) -> None:  # noqa: F811
    with CheckpointStore(where) as store:
        put(store, checkpoint(0, 1))
    with CheckpointStore(where, resume=True), pytest.raises(UsageError):
        CheckpointStore(where, resume=True)


def test_a_process_that_holds_a_run_is_named_and_once_killed_blocks_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        with pytest.raises(UsageError, match=f"process {holder.pid} on"):
            CheckpointStore(str(tmp_path), resume=True)
        holder.send_signal(signal.SIGKILL)
    finally:
        holder.kill()
        holder.wait(30)
        assert holder.stdout is not None
        holder.stdout.close()
    assert list(tmp_path.glob("*.alive"))
    with CheckpointStore(str(tmp_path), resume=True) as store:
        assert labels(store) == ["fit0-epoch1-step0"]


def test_a_process_that_has_ended_and_that_nobody_has_reaped_blocks_nothing(tmp_path: Path) -> None:
    with CheckpointStore(str(tmp_path)) as store:
        put(store, checkpoint(0, 1))
    files = files_of(store)
    with subprocess.Popen(["sleep", "600"]) as holder:
        left = replace(own_mark(files.run), pid=holder.pid, begun=_begun(holder.pid))
        files.write_mark(files.run, json.dumps(asdict(left)).encode())
        with pytest.raises(UsageError, match=f"process {holder.pid} on"):
            CheckpointStore(str(tmp_path), resume=True)
        holder.kill()
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        with CheckpointStore(str(tmp_path), resume=True) as store:
            assert labels(store) == ["fit0-epoch1-step0"]


@pytest.mark.parametrize(
    ("age", "there", "alive"),
    [
        (5, {"host": "elsewhere", "pid": 4194304}, True),
        (lock.STALE_SECONDS + 1, {"host": "elsewhere"}, False),
        (5, {"machine": "another container", "pid": 4194304}, True),
        (5, {"begun": "7"}, False),  # another process has its pid now
        (lock.STALE_SECONDS + 1, {}, False),
    ],
)
def test_of_other_hosts_the_age_of_the_mark_decides(where: str, age: float, there: dict[str, Any], alive: bool) -> None:  # noqa: F811
    with CheckpointStore(where) as store:
        put(store, checkpoint(0, 1))
    files = files_of(store)
    left = replace(own_mark(files.run), beat=time.time() - age, **there)
    files.write_mark(files.run, json.dumps(asdict(left)).encode())
    if alive:
        with pytest.raises(UsageError, match=left.host):
            CheckpointStore(where, resume=True)
        return
    with CheckpointStore(where, resume=True) as store:
        assert labels(store) == ["fit0-epoch1-step0"]


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b'{"run": 1}'])
def test_a_mark_that_cannot_be_read_blocks_nothing(where: str, left: bytes) -> None:  # noqa: F811
    with CheckpointStore(where) as store:
        put(store, checkpoint(0, 1))
    files_of(store).write_mark(files_of(store).run, left)
    with CheckpointStore(where, resume=True) as store:
        assert labels(store) == ["fit0-epoch1-step0"]


def test_the_mark_is_kept_new_and_one_that_was_taken_over_is_told_of(
    where: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.01)
    notices: list[str] = []
    with CheckpointStore(where, notify=notices.append) as store:
        first, deadline = mark_of(store), time.monotonic() + 30
        while mark_of(store).beat == first.beat:
            assert time.monotonic() < deadline
        stranger = json.dumps(asdict(replace(first, nonce="another"))).encode()
        while not notices:
            files_of(store).write_mark(first.run, stranger)
            time.sleep(0.02)
            assert time.monotonic() < deadline
    assert "Another process has resumed the run" in notices[0]
    assert files_of(store).read_mark(first.run) == stranger
