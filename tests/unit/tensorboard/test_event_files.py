"""Copies of a worker's event files: whole, once, private, and nowhere but in the run's own folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.tensorboard import event_files
from tfos_magic.tensorboard.event_files import EventMirror
from tfos_magic.transport.messages import EventFilePart

NAME = "events.out.tfevents.1700000000.host.7.0.v2"


def part(
    path: str = f"logs/train/{NAME}", offset: int = 0, payload: bytes = b"0123", origin: str = ""
) -> EventFilePart:
    return EventFilePart("r", 0, path, origin or f"/nowhere/{path}", offset, payload)


@pytest.fixture
def mirror(tmp_path: Path) -> Callable[[], tuple[EventMirror, RunState, Path]]:
    def make(private: Callable[[str], str] | None = None) -> tuple[EventMirror, RunState, Path]:
        root = tmp_path / "runs" / "run-1"
        state = RunState("r", "run 1", "sync", [], log_dir="" if private else str(root))
        return EventMirror(state, private), state, root

    return make


def test_parts_make_the_file_they_were_cut_from_however_often_they_come(mirror) -> None:
    copies, state, root = mirror()
    for offset, payload in ((0, b"0123"), (4, b"4567"), (0, b"0123"), (4, b"4567"), (8, b"89")):
        copies.take(part(offset=offset, payload=payload))
    assert (root / "logs" / "train" / NAME).read_bytes() == b"0123456789"
    assert state.notices == []


def test_copies_are_for_the_user_alone(mirror) -> None:
    copies, _, root = mirror()
    copies.take(part())
    file = root / "logs" / "train" / NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (file.parent, file.parent.parent)} == {0o700}


@pytest.mark.parametrize(
    "path",
    [
        f"../{NAME}",
        f"logs/../../{NAME}",
        f"/tmp/{NAME}",
        "",
        "..",
        "logs/notes.txt",
        f"logs/{NAME}\0",
    ],
)
def test_a_path_that_leaves_the_run_or_is_no_event_file_is_refused(mirror, path: str, tmp_path: Path) -> None:
    copies, state, _ = mirror()
    copies.take(part(path))
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    assert "is not an event file of the run's own folder" in state.notices[0]


def test_no_link_leads_out_of_the_run(mirror, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / NAME).write_bytes(b"theirs")
    for make in (
        lambda root: os.symlink(outside, root / "logs"),
        lambda root: ((root / "logs").mkdir(), os.symlink(outside / NAME, root / "logs" / NAME)),
    ):
        copies, state, root = mirror()
        root.mkdir(parents=True, exist_ok=True)
        (root / "logs").unlink(missing_ok=True)
        make(root)
        copies.take(part(f"logs/{NAME}", payload=b"ours"))
        assert (outside / NAME).read_bytes() == b"theirs"
        assert len(state.notices) == 1


@pytest.mark.parametrize(
    ("caps", "parts", "reason"),
    [
        ({"EVENT_FILE_BYTES": 10}, [part(), part(offset=4), part(offset=8)], "MB, which are the most of one file"),
        ({"EVENT_FILE_BYTES": 10}, [part(payload=bytes(11))], "MB, which are the most of one file"),
        (
            {"EVENT_RUN_BYTES": 10},
            [part(f"{name}/{NAME}") for name in "aabbaac"],
            "MB, which are the most of a run",
        ),
        ({"FILES": 3}, [part(f"{name}/{NAME}", payload=b"") for name in "abcabcd"], "one more than 3 files"),
        ({}, [part(f"{'a/' * 500}{NAME}")], "its path has more than 1000 characters"),
    ],
)
def test_no_more_is_kept_than_the_most_of_a_file_and_of_a_run_whatever_is_sent(
    mirror, monkeypatch: pytest.MonkeyPatch, caps: dict[str, int], parts: list[EventFilePart], reason: str
) -> None:
    for name, value in caps.items():
        monkeypatch.setattr(event_files, name, value)
    copies, state, root = mirror()
    for each in parts[:-1]:
        copies.take(each)
    assert state.notices == []
    copies.take(parts[-1])
    copies.take(parts[-1])
    assert [reason in notice for notice in state.notices] == [True]
    kept = [file.stat().st_size for file in root.rglob("*tfevents*")] if root.exists() else []
    assert sum(kept) <= 10
    assert len(kept) <= 3


def test_a_gap_is_not_filled_with_zeros(mirror) -> None:
    copies, state, root = mirror()
    copies.take(part(offset=8))
    assert (root / "logs" / "train" / NAME).read_bytes() == b""
    assert "bytes 0 to 8 of it are missing" in state.notices[0]


def test_a_folder_that_cannot_be_written_is_said_once(mirror, tmp_path: Path) -> None:
    copies, state, _ = mirror()
    (tmp_path / "runs").write_text("a file where the folder should be")
    copies.take(part())
    copies.take(part(offset=4))
    assert len(state.notices) == 1
    assert "are no longer copied" in state.notices[0]


def test_a_file_that_the_folder_of_runs_has_already_gets_no_copy(mirror, tmp_path: Path) -> None:
    copies, _, root = mirror()
    seen = tmp_path / "runs" / "mine" / NAME
    seen.parent.mkdir(parents=True)
    seen.write_bytes(b"0123")
    copies.take(part(f"runs/mine/{NAME}", origin=str(seen)))
    assert not root.exists()
    elsewhere = tmp_path / "logs" / NAME
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(b"0123")
    copies.take(part(f"logs/{NAME}", origin=str(elsewhere)))
    assert (root / "logs" / NAME).read_bytes() == b"0123"


def test_a_run_without_a_log_directory_gets_one_with_its_first_event_file(mirror, tmp_path: Path) -> None:
    asked = []

    def private(name: str) -> str:
        asked.append(name)
        return str(tmp_path / "private" / "run-1")

    copies, state, _ = mirror(private)
    assert copies.has_place
    assert state.log_dir == ""
    copies.take(part())
    copies.take(part(offset=4))
    assert asked == ["run 1"]
    assert state.log_dir == str(tmp_path / "private" / "run-1")
    assert (Path(state.log_dir) / "logs" / "train" / NAME).read_bytes() == b"01230123"
    assert "%tfos tensorboard" in state.notices[0]


def test_without_any_place_nothing_is_asked_of_the_worker() -> None:
    assert not EventMirror(RunState("r", "run 1", "sync", [])).has_place
