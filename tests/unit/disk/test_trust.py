"""Where code may be imported from, told by the system's own owners and modes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tfos_magic.disk.modules import local_modules
from tfos_magic.disk.trust import is_trusted

STRANGER = 65534


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A place like ``/tmp``."""
    made = tmp_path / "shared"
    made.mkdir()
    made.chmod(0o1777)
    return made


@pytest.fixture
def theirs(shared: Path) -> Path:
    """What another user has put there."""
    made = shared / "project"
    made.mkdir()
    if os.geteuid():
        pytest.skip("only root gives a directory to another user")
    os.chown(made, STRANGER, STRANGER)
    return made


def test_an_own_directory_is_trusted_there_and_elsewhere(shared: Path, tmp_path: Path) -> None:
    for folder in (shared / "mine", tmp_path / "mine"):
        folder.mkdir()
        assert is_trusted(str(folder))


def test_a_strangers_directory_in_a_place_that_everybody_writes_to_is_not_nor_what_is_in_it(theirs: Path) -> None:
    inner = theirs / "package"
    inner.mkdir()
    assert not is_trusted(str(theirs))
    assert not is_trusted(str(inner))
    assert not is_trusted(f"{theirs}/../project/package")


def test_a_strangers_link_there_is_not_trusted_and_neither_is_an_own_link_to_theirs(
    theirs: Path, shared: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (shared / "link").symlink_to(mine)
    assert is_trusted(str(shared / "link"))
    os.lchown(shared / "link", STRANGER, STRANGER)
    assert not is_trusted(str(shared / "link"))
    (tmp_path / "own").symlink_to(theirs)
    assert not is_trusted(str(tmp_path / "own"))


def test_another_users_directory_in_a_closed_place_is_trusted_as_on_a_shared_disk(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    if os.geteuid():
        pytest.skip("only root gives a directory to another user")
    os.chown(folder, STRANGER, STRANGER)
    assert is_trusted(str(folder))


def test_what_everybody_writes_to_is_not_trusted_sticky_or_not(shared: Path) -> None:
    assert not is_trusted(str(shared))
    shared.chmod(0o777)
    assert not is_trusted(str(shared))


def test_what_a_group_of_others_writes_to_in_a_place_of_everybody_is_not_trusted(shared: Path) -> None:
    folder = shared / "of a group"
    folder.mkdir(mode=0o775)
    folder.chmod(0o775)
    assert is_trusted(str(folder))
    os.chown(folder, -1, 65_534)
    assert not is_trusted(str(folder))


def test_what_is_not_there_or_no_directory_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "nothing", "file/inner", "loop"):
        if name == "loop":
            (tmp_path / name).symlink_to(tmp_path / name)
        assert not is_trusted(str(tmp_path / name))


def test_a_cell_does_not_import_from_a_strangers_directory_that_the_notebook_has_by_the_same_name(
    theirs: Path, shared: Path, tmp_path: Path
) -> None:
    (theirs / "planted_by_a_stranger.py").write_text("raise SystemExit('planted')")
    mine = shared / "mine"
    mine.mkdir()
    (mine / "module_of_the_notebook.py").write_text("value = 7")
    with local_modules(str(tmp_path), [str(theirs), str(mine)], ()):
        assert str(theirs) not in sys.path
        import module_of_the_notebook  # type: ignore[import-not-found]

        assert module_of_the_notebook.value == 7
        with pytest.raises(ModuleNotFoundError):
            import planted_by_a_stranger  # noqa: F401
