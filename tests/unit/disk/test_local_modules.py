"""Modules beside the notebook: which are sent along, and which a trainer imports anew."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tfos_magic.disk.module_texts import local_sources
from tfos_magic.disk.modules import EditedModules, local_modules, write_sources

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_one.py").write_text("from beside_pack import inner\nVALUE = 1\n")
    (tmp_path / "beside_pack").mkdir()
    (tmp_path / "beside_pack" / "__init__.py").write_text("from . import inner\nfrom .inner import deep\n")
    (tmp_path / "beside_pack" / "inner.py").write_text("deep = 2\n")
    (tmp_path / "never_named.py").write_text("")
    return tmp_path


def test_what_a_cell_imports_goes_along_with_what_that_imports(folder: Path) -> None:
    found = local_sources("import numpy as np\nimport beside_one\n")
    assert sorted(found) == ["beside_one.py", "beside_pack/__init__.py", "beside_pack/inner.py"]


def test_a_module_in_an_archive_stays_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(folder / "beside.zip", "w") as archive:
        archive.writestr("beside_zipped/__init__.py", "VALUE = 3\n")
    monkeypatch.syspath_prepend(folder / "beside.zip")
    assert importlib.import_module("beside_zipped").VALUE == 3
    assert (
        local_sources("import beside_zipped\nimport beside_one\n").keys() == local_sources("import beside_one").keys()
    )


def test_a_cell_that_imports_nothing_sends_nothing(folder: Path) -> None:
    assert local_sources("x = 1") == {}


def test_a_module_is_read_anew_for_each_cell_and_the_import_path_is_put_back(folder: Path, tmp_path: Path) -> None:
    before = list(sys.path)
    for value in (1, 25):
        (folder / "beside_one.py").write_text(f"from beside_pack import inner\nVALUE = {value}\n")
        copy = tmp_path / f"copy-{value}"
        write_sources(local_sources("import beside_one"), str(copy))
        with local_modules(str(copy), [], ()):
            import beside_one

            found = beside_one.VALUE
            assert found == value
            assert beside_one.inner.deep == 2
        assert "beside_one" not in sys.modules
    assert sys.path == before


def test_a_folder_that_comes_to_be_between_two_cells_is_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path / "later"
    monkeypatch.syspath_prepend(later)
    with local_modules(str(tmp_path), [], ()), pytest.raises(ImportError):
        importlib.import_module("made_later")
    later.mkdir()
    (later / "made_later.py").write_text("VALUE = 4\n")
    with local_modules(str(tmp_path), [], ()):
        assert importlib.import_module("made_later").VALUE == 4


def test_imports_of_every_form_are_found(folder: Path) -> None:
    for name in ("one", "two", "three", "four"):
        (folder / f"{name}.py").touch()
    found = local_sources(
        "def late():\n    import one.inner as other\n\nclass A:\n    from two import z\n"
        "if 0:\n    pass\nelse:\n    import numpy, three\nlambda: __import__('none')\nfrom four import x, y\n"
    )
    assert set(found) == {"one.py", "two.py", "three.py", "four.py"}


def test_runs_in_several_threads_may_look_at_once(folder: Path) -> None:
    text = "\n".join(f"a{i} = [" * 20 + "1" + "]" * 20 for i in range(300))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(local_sources, [text] * 40)) == [{}] * 40


def test_modules_of_the_import_path_stay_until_one_beside_them_is_edited(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, other = (tmp_path_factory.mktemp(name) for name in ("library", "other"))
    (library / "far_parts.py").write_text("UNITS = 3\n")
    (library / "far_nets.py").write_text("from far_parts import UNITS\n")
    (other / "far_away.py").write_text("")
    for place in (library, other):
        monkeypatch.syspath_prepend(str(place))
        for file in place.iterdir():
            os.utime(file, (1, 1))
    edited = EditedModules(frozenset(sys.modules))

    def imported(states: dict[str, str]) -> tuple[int, bool]:
        with local_modules(str(folder), [], ()), edited.imported_anew(str(folder), states):
            import far_away
            import far_nets

            return far_nets.UNITS, bool(vars(far_away).setdefault("stays", []))

    assert imported({}) == (3, False)
    sys.modules["far_away"].stays.append(1)
    assert imported({}) == (3, True)
    (library / "far_parts.py").write_text("UNITS = 4\n")
    assert imported({}) == (4, True)
    (library / "far_parts.py").write_text("UNITS = 5\n")  # within the second, and as long
    assert imported({}) == (5, True)
    (library / "far_parts.py").touch()
    sys.modules["far_parts"].UNITS = 7
    assert imported({"far_parts": "set"}) == (5, True)
    sys.modules["far_parts"].UNITS = 7
    assert imported({}) == (5, True)
    for name in ("far_parts", "far_nets", "far_away"):
        monkeypatch.delitem(sys.modules, name)
