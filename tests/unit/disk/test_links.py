"""What is told of files that a program opens for writing outside of its own folders."""

import os
import tempfile
from pathlib import Path

import pytest

from tfos_magic.disk.links import guarded


def test_writing_elsewhere_is_heard_of_by_its_path(tmp_path: Path) -> None:
    heard: list[str] = []
    own = tmp_path / "own"
    own.mkdir()
    with guarded([str(own)], heard.append):
        (own / "mine").write_text("")
        (tmp_path / "everybodys").write_text("")
        (tmp_path / "everybodys").read_text()
    (tmp_path / "after").write_text("")
    assert heard == [str(tmp_path / "everybodys")]


@pytest.mark.parametrize("folder", ["own", "."])
def test_files_without_a_name_are_nobody_elses(tmp_path: Path, folder: str) -> None:
    heard: list[str] = []
    (tmp_path / "own").mkdir()
    with guarded([str(tmp_path / "own")], heard.append):
        os.close(os.open(tmp_path / folder, os.O_TMPFILE | os.O_RDWR))
        with tempfile.TemporaryFile(dir=tmp_path / folder) as file:
            file.write(b"1")
    assert heard == []
