"""Folders that go with their process, and those that a crash of all who cared for them has left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tfos_magic.processes import temporary_folder
from tfos_magic.processes.temporary_folder import PrivateFolder, left_behind, remove

MAKE = (
    "import time; from tfos_magic.processes.temporary_folder import PrivateFolder; "
    "print(PrivateFolder('tfos-trainer-').path, flush=True); time.sleep(60)"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary_folder, "MADE_SECONDS", -1.0)
    return tmp_path


def test_a_folder_goes_with_its_process_and_is_no_longer_needed_then(here: Path) -> None:
    folder = PrivateFolder("tfos-feed-")
    assert os.path.isdir(folder.path)
    assert folder.path not in left_behind()
    folder.close()
    assert not os.path.exists(folder.path)


def test_a_folder_whose_process_and_remover_were_killed_is_found_and_removed(here: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKE], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(here)}
    ) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        assert Path(path).parent == here
        assert path not in left_behind()
        for child in psutil.Process(process.pid).children():
            child.send_signal(signal.SIGKILL)
        process.kill()
    assert path in left_behind()
    assert remove([path]) == 1
    assert path not in left_behind()


def test_folders_of_other_names_or_modes_and_links_are_left_alone(here: Path) -> None:
    (here / "tfos-mydata").mkdir(mode=0o700)
    (here / "tfos-trainer-shared").mkdir()
    (here / "tfos-trainer-shared").chmod(0o755)
    (here / "tfos-trainer-link").symlink_to(here / "tfos-mydata")
    assert [path for path in left_behind() if path.startswith(str(here))] == []
