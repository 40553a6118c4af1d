"""What the kernel keeps of a run: whole checkpoints only, the last ones, where the user wants them."""

from __future__ import annotations

import io
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from tfos_magic.checkpoints import checkpoint as checkpoints
from tfos_magic.checkpoints import store as checkpoint_store
from tfos_magic.checkpoints.checkpoint import (
    Assembly,
    Checkpoint,
    Damaged,
    Position,
    assemble,
    decode,
    decode_whole,
    encode,
    split,
)
from tfos_magic.checkpoints.directory import Entry, superfluous
from tfos_magic.checkpoints.setting import Setting
from tfos_magic.checkpoints.store import CheckpointStore
from tfos_magic.errors import ClusterError
from tfos_magic.storage import without_password
from tfos_magic.transport.messages import CheckpointPart

ARRAYS = {"v0": np.arange(12.0, dtype=np.float32).reshape(3, 4), "v1": np.array(7), "empty": np.zeros((0, 2))}


def checkpoint(fit: int, epoch: int, *, complete: bool = False, seed: int = 11) -> Checkpoint:
    details = {"history": {"loss": [0.5, float("inf")]}, "words": "größer"}
    return Checkpoint(Position(fit, epoch, 0, complete, seed), details, ARRAYS)


def put(store: CheckpointStore, *taken: Checkpoint) -> None:
    for one in taken:
        for part in split("run", uuid4().hex, one.position, encode(one)):
            store.note(part)
        assert store.flush(30)


def labels_of(store: CheckpointStore, setting: Setting | None) -> list[str]:
    return [found.position.label for found in assemble(store.parts("run", setting))]


def labels(store: CheckpointStore) -> list[str]:
    return labels_of(store, None)


def files(where: Path) -> list[Path]:
    return sorted(where.rglob("*.npz"))


@pytest.fixture(params=["path", "file", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        import fsspec

        yield (url := f"memory://{uuid4().hex}/run")
        fsspec.filesystem("memory").rm(url.rpartition("/")[0], recursive=True)
    else:
        yield f"{'file://' if request.param == 'file' else ''}{tmp_path}/some/where"


def test_a_checkpoint_comes_back_as_it_was() -> None:
    back = decode(encode(checkpoint(2, 3)))
    assert back.position == Position(2, 3, 0, False, 11)
    assert back.details == checkpoint(2, 3).details
    assert back.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)


def test_arrays_come_back_equal_in_whichever_order_their_memory_has_them() -> None:
    arrays = {"columns": np.asfortranarray(ARRAYS["v0"]), "transposed": ARRAYS["v0"].T, "strided": ARRAYS["v0"][:, ::2]}
    back = decode(encode(Checkpoint(Position(0, 1, 0, False, 1), {}, arrays))).arrays
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)


def flipped(data: bytes, bit: int) -> bytes:
    place = bit // 8
    return data[:place] + bytes([data[place] ^ 1 << bit % 8]) + data[place + 1 :]


def test_no_changed_bit_and_no_cut_is_taken_for_a_checkpoint() -> None:
    """All bits of the ZIP archive's directory and of the digest, every seventh elsewhere."""
    data = encode(checkpoint(0, 1))
    directory = 8 * data.index(b"PK\x01\x02")
    bits = [*range(0, directory, 7), *range(directory, 8 * len(data))]
    damaged = [*(flipped(data, bit) for bit in bits), *(data[:size] for size in range(len(data))), data + b"\0"]
    for each in damaged:
        with pytest.raises(Damaged):
            decode(each)


def test_numpy_reads_a_checkpoint_too(tmp_path: Path) -> None:
    (tmp_path / "one.npz").write_bytes(encode(checkpoint(0, 1)))
    with np.load(tmp_path / "one.npz") as arrays:
        np.testing.assert_array_equal(arrays["v0"], ARRAYS["v0"])


def test_a_checkpoint_without_an_array_of_its_layout_is_damaged() -> None:
    details = {"layout": [["dense/kernel", "float32", [3, 4]], ["dense/bias", "int64", []], ["rate", "float32", []]]}
    with pytest.raises(Damaged, match="rate"):
        decode_whole(encode(Checkpoint(Position(0, 1, 0, False, 1), details, ARRAYS)))


def test_pickles_are_refused_unopened() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return pytest.fail, ("the pickle was opened",)

    data = io.BytesIO()
    np.savez(data, **{"meta.json": np.frombuffer(b"{}", np.uint8), "v0": np.array([Bomb()], dtype=object)})
    with pytest.raises(Damaged, match="pickled"):
        decode(data.getvalue() + checkpoints._SEAL + checkpoints._digest(data.getvalue()))


def test_parts_that_are_missing_late_or_of_another_checkpoint_make_no_checkpoint(monkeypatch) -> None:
    monkeypatch.setattr(checkpoints, "PART_BYTES", 100)
    first, second = (list(split("run", name, Position(0, 1, 0, False, 1), bytes(250))) for name in ("a", "b"))
    assert [part.count for part in first] == [3, 3, 3]
    for parts in (first[1:], [first[0], first[2]], [*first[:2], second[2]]):
        assembly = Assembly()
        assert [assembly.add(part) for part in parts] == [None] * len(parts)
    assembly = Assembly()
    assert [assembly.add(part) for part in [*first[:2], *second]][-1] == bytes(250)


@pytest.mark.parametrize(
    "change",
    [
        {"payload": bytes(101)},
        {"count": 1_000_000},
        {"count": -1},
        {"count": 0},
    ],
    ids=str,
)
def test_a_checkpoint_larger_than_any_is_not_kept_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(checkpoints, "PART_BYTES", 100)
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 1000)
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), notify=notices.append) as store:
        for each in split("run", "large", Position(0, 1, 0, False, 1), bytes(250)):
            store.note(replace(each, **change))
        assert store.flush(30)
        assert files(tmp_path) == []
        assert ["is larger than" in notice for notice in notices] == [True]
        for each in split("run", "small", Position(0, 2, 0, False, 1), bytes(1000)):
            store.note(each)
        assert store.flush(30)
        assert [file.stat().st_size for file in files(tmp_path)] == [1000]


def test_no_name_of_a_checkpoint_or_position_leads_out_of_the_runs_folder(tmp_path: Path) -> None:
    where, notices = tmp_path / "where", list[str]()
    with CheckpointStore(str(where), notify=notices.append) as store:
        for part in split("run", "../../name", Position(0, 1, 0, False, 1), bytes(10)):
            for meta in ({}, {"fit": "../../x"}, {"epoch": -1}, {"step": True}, {"complete": "/"}):
                store.note(replace(part, meta={**part.meta, **meta}))
        assert store.flush(30)
    assert [file.name for file in tmp_path.rglob("*.npz")] == ["000000-fit0-epoch1-step0.npz"]
    assert files(tmp_path)[0].parent.parent == where
    assert len(notices) == 4


def test_checkpoints_that_wait_for_a_slow_disk_have_a_bound_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "CHECKPOINT_BYTES", 1000)
    with CheckpointStore(str(tmp_path), keep=100) as store:
        with store._changed:  # nothing is written meanwhile
            for fit in range(20):
                for part in split("run", f"{fit}", Position(fit, 1, 0, True, 1), bytes(300)):
                    store.note(part)
            assert sum(len(data) for _, data in store._waiting) <= 1000
            assert store._waiting[-1][0].fit == 19
        assert store.flush(30)


def test_the_newest_that_is_written_is_one_that_was_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointStore(str(tmp_path)) as store:
        write = store._files.write
        monkeypatch.setattr(store._files, "write", lambda *told: (time.sleep(0.5), write(*told)))
        for epoch in (1, 2):
            for part in split("run", str(epoch), Position(0, epoch, 0, False, 1), bytes(300)):
                store.note(part)
        newest = store.written()
    assert newest is not None
    assert newest.epoch == 2


def test_a_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    assert without_password("sftp://me:hunter2@host/runs") == "sftp://me:…@host/runs"
    assert without_password("s3://bucket/a:b@c") == "s3://bucket/a:b@c"
    assert without_password(str(tmp_path)) == str(tmp_path)
    with pytest.raises(ClusterError, match="sftp-none://me:…@host") as caught:
        CheckpointStore("sftp-none://me:hunter2@host/runs")
    assert "hunter2" not in str(caught.value)


def test_the_last_ones_are_kept_and_the_end_of_each_fit(where: str) -> None:
    with CheckpointStore(where, 2) as store:
        put(store, *(checkpoint(0, epoch) for epoch in range(1, 5)))
        assert labels(store) == ["fit0-epoch4-step0"]
        put(store, checkpoint(0, 5, complete=True), *(checkpoint(1, epoch) for epoch in range(1, 4)))
        assert labels(store) == ["fit1-epoch3-step0", "fit0-end"]
        assert [entry.sequence for entry in store._files.entries()] == [4, 6, 7]


def test_a_later_store_goes_on_with_the_newest_run_and_its_seed(where: str) -> None:
    for seed, epochs in ((5, 3), (6, 2)):
        with CheckpointStore(where) as store:
            put(store, *(checkpoint(0, epoch, seed=seed) for epoch in range(1, epochs + 1)))
    with CheckpointStore(where):  # a run that ended before its first checkpoint
        pass
    with CheckpointStore(where, resume=True) as store:
        assert store.seed == 6
        assert labels(store) == ["fit0-epoch2-step0"]
        put(store, checkpoint(0, 3, seed=6))
        assert labels(store) == ["fit0-epoch3-step0"]
        assert len(store._files.runs()) == 2
    with CheckpointStore(where) as store:
        assert store.seed is None
        assert labels(store) == []


def test_a_damaged_file_is_passed_over_for_the_one_before_with_a_notice(tmp_path: Path) -> None:
    with CheckpointStore(str(tmp_path)) as store:
        put(store, checkpoint(0, 1), checkpoint(0, 2), checkpoint(0, 3))
    *_, before, newest = files(tmp_path)
    newest.write_bytes(newest.read_bytes()[:-40])
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), resume=True, notify=notices.append) as store:
        assert store.newest is not None
        assert store.newest.words == "epoch 3"
        assert labels(store) == ["fit0-epoch2-step0"]
    assert len(notices) == 2
    assert all(str(newest) in notice and "skipped" in notice and "epoch 3" in notice for notice in notices)
    assert before.exists()


def test_a_pipe_by_the_name_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    with CheckpointStore(str(tmp_path)) as store:
        put(store, checkpoint(0, 1), checkpoint(0, 2))
    newest = files(tmp_path)[-1]
    newest.unlink()
    os.mkfifo(newest)
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), resume=True, notify=notices.append) as store:
        assert labels(store) == ["fit0-epoch1-step0"]
    assert str(newest) in notices[0]
    assert "it is no file" in notices[0]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: flipped(data, 4000)])
def test_where_all_are_damaged_a_run_is_not_resumed_and_they_are_named(tmp_path: Path, damage: Any) -> None:
    for epochs in (3, 2):  # an older run is another one: it is not gone on from in silence
        with CheckpointStore(str(tmp_path)) as store:
            put(store, *(checkpoint(0, epoch) for epoch in range(1, epochs + 1)))
    newest = files(tmp_path)[3:]
    for file in newest:
        file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ClusterError) as caught:
        CheckpointStore(str(tmp_path), resume=True)
    assert all(str(file) in str(caught.value) for file in newest)
    assert "leave out --resume" in str(caught.value)
    assert not [thread for thread in threading.enumerate() if thread.name == "tfos-checkpoints"]


def test_where_all_are_damaged_a_restarted_run_begins_anew_and_says_so(tmp_path: Path) -> None:
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), notify=notices.append) as store:
        put(store, checkpoint(0, 1), checkpoint(0, 2))
        for file in files(tmp_path):
            file.write_bytes(flipped(file.read_bytes(), 4000))
        assert labels(store) == []
        assert store.newest is None
    assert "starts over" in notices[0]
    assert all(str(file) in notices[0] for file in files(tmp_path))


def test_private_checkpoints_are_checked_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    with CheckpointStore(notify=notices.append) as store:
        put(store, checkpoint(0, 1), checkpoint(0, 2))
        newest = store._files.entries()[-1]
        file = store._files._files[newest]  # type: ignore[union-attr]
        file.seek(500)
        file.write(b"damage")
        assert labels(store) == ["fit0-epoch1-step0"]
    assert "skipped" in notices[0]


def test_a_checkpoint_under_the_name_of_another_is_passed_over(tmp_path: Path) -> None:
    notices: list[str] = []
    with CheckpointStore(str(tmp_path)) as store:
        put(store, checkpoint(0, 1), checkpoint(0, 2))
    before, newest = files(tmp_path)
    newest.write_bytes(before.read_bytes())
    with CheckpointStore(str(tmp_path), resume=True, notify=notices.append) as store:
        assert labels(store) == ["fit0-epoch1-step0"]
    assert "by another name" in notices[0]


def test_a_file_that_was_never_finished_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    with CheckpointStore(str(tmp_path)) as store:
        put(store, checkpoint(0, 1))
        folder = files(tmp_path)[0].parent
        (folder / "000001-fit0-epoch2-step0.npz.partial").write_bytes(b"half")
        assert labels(store) == ["fit0-epoch1-step0"]


def test_what_a_kill_left_half_written_goes_when_the_run_is_resumed(tmp_path: Path) -> None:
    with CheckpointStore(str(tmp_path)) as store:
        put(store, checkpoint(0, 1))
    half = files(tmp_path)[0].with_suffix(".npz.partial")
    half.write_bytes(b"half")
    with CheckpointStore(str(tmp_path), resume=True):
        assert not half.exists()
    assert len(files(tmp_path)) == 1


def test_files_and_folders_on_the_own_disk_are_the_users_alone(tmp_path: Path) -> None:
    with CheckpointStore(str(tmp_path / "new")) as store:
        put(store, checkpoint(0, 1))
    (file,) = files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.parent.parent.stat().st_mode) == 0o700


def test_without_a_place_checkpoints_live_in_files_that_no_directory_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with CheckpointStore(keep=2) as store:
        for epoch in range(4):
            put(store, checkpoint(0, epoch))
        (newest,) = assemble(store.parts("run"))
        assert newest.position.epoch == 3
        np.testing.assert_array_equal(newest.arrays["v0"], ARRAYS["v0"])
        assert [entry.name for entry in store._files.entries()] == ["fit0-epoch2-step0", "fit0-epoch3-step0"]
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("where", "cause", "remedy"),
    [
        ("nonsense://bucket/x", "Protocol not known: nonsense", "Give a path, or a URL"),
        ("gs://bucket/x", "gcsfs", "Install the package that fsspec names"),
        ("/proc/no/such/place", "/proc/no", "Give a directory"),
        (__file__, "Not a directory", "Give a directory"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_refused_at_once(where: str, cause: str, remedy: str) -> None:
    with pytest.raises(ClusterError) as caught:
        CheckpointStore(where)
    assert cause in str(caught.value)
    assert remedy in str(caught.value)
    assert where in str(caught.value)


def test_a_disk_that_fills_up_costs_checkpoints_not_the_run(tmp_path: Path, monkeypatch) -> None:
    """The write fails as it would on a full disk; the error is injected at the lowest call."""
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), notify=notices.append) as store:
        put(store, checkpoint(0, 1))

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        put(store, checkpoint(0, 2), checkpoint(0, 3))
        monkeypatch.undo()
        assert labels(store) == ["fit0-epoch1-step0"]
        put(store, checkpoint(0, 4))
        assert labels(store) == ["fit0-epoch4-step0"]
    assert len(notices) == 1, "what was written after it has taken its place"
    assert "No space left on device" in notices[0]
    assert "The run continues" in notices[0]
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(("before", "then"), [([1], "goes on from epoch 2"), ([], "finds none")])
def test_that_the_last_checkpoint_is_not_there_is_said_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[int], then: str
) -> None:
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), notify=notices.append) as store:
        put(store, *(checkpoint(0, epoch) for epoch in before))

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        put(store, checkpoint(0, 2), checkpoint(0, 3))
        assert not any("The last checkpoint" in notice for notice in notices)
    monkeypatch.undo()
    assert notices[-1].startswith(f"The last checkpoint was not written to {tmp_path}: --resume {then}")
    assert sum("The last checkpoint" in notice for notice in notices) == 1


def test_a_peers_words_do_not_choose_where_a_file_goes(tmp_path: Path) -> None:
    notices: list[str] = []
    data = encode(checkpoint(0, 1))
    meta = {**Position(0, 1, 0, False, 1).meta(), "fit": "../../x"}
    with CheckpointStore(str(tmp_path / "a"), notify=notices.append) as store:
        store.note(CheckpointPart("run", 0, "../../../x", 0, 1, meta, data))
        assert store.flush(30)
    assert files(tmp_path) == []
    assert "is not kept" in notices[0]


def test_ends_of_fits_stay_within_their_budget(monkeypatch) -> None:
    monkeypatch.setattr("tfos_magic.checkpoints.directory.ENDS_BYTES", 250)
    entries = [Entry(f"{i}", i, fit=i, complete=True, bytes=100) for i in range(6)]
    assert [entry.sequence for entry in superfluous(entries, 1)] == [2, 1, 0]
    assert superfluous([], 1) == []


def test_a_store_that_does_not_answer_is_told_of_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "SLOW_SECONDS", 0.2)
    told: list[str] = []
    answers = threading.Event()
    store = CheckpointStore(str(tmp_path), notify=told.append)
    write = store._files.write
    monkeypatch.setattr(store._files, "write", lambda *given: answers.wait(30) and write(*given))
    for epoch in range(4):
        one = checkpoint(0, epoch)
        for part in split("run", uuid4().hex, one.position, encode(one)):
            store.note(part)
        time.sleep(0.3)
    (notice,) = told
    assert "on its way to" in notice
    assert "The run continues." in notice
    answers.set()
    store.close()
    assert told == [notice]
