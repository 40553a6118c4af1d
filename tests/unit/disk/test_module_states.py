"""What a notebook sets in modules beside it is there on workers, which import them anew."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tfos_magic.disk import module_states
from tfos_magic.disk.imports import ImportListener, set_states
from tfos_magic.disk.module_states import changed_states, watch
from tfos_magic.disk.modules import local_modules

TEXT = """
import os
from beside_pack.inner import DEEP
LR, STEPS, CONFIG, PLACE, LATE = .5, 2 * 8, {"units": [1, 2]}, os.path.join(os.path.dirname(__file__), "data"), None
def build():
    return LR, STEPS, CONFIG, DEEP
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module_states, "_begun", {})
    (tmp_path / "beside_state.py").write_text(TEXT)
    (tmp_path / "beside_pack").mkdir()
    (tmp_path / "beside_pack" / "__init__.py").write_text("")
    (tmp_path / "beside_pack" / "inner.py").write_text("DEEP = 3\n")
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("beside_")]:
        del sys.modules[name]


@pytest.fixture
def watched(folder: Path) -> Iterator[Path]:
    listener = watch()
    yield folder
    listener.end()


def _imported() -> Any:
    return importlib.import_module("beside_state")


def _on_a_worker(folder: Path, states: dict[str, str]) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:  # the notebook's process is another one
        patch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if not isinstance(finder, ImportListener)])
        with local_modules(str(folder), [], ()), set_states(str(folder), states):
            return importlib.import_module("beside_state")


def test_what_was_set_is_there_and_what_was_not_is_as_imported(watched: Path) -> None:
    module = _imported()
    module.LR, module.ADDED = 0.02, ("a", b"b", {1, None}, float("inf"))
    module.CONFIG["units"].append(3)
    module.LATE = module.THREAD = object()
    sys.modules["beside_pack.inner"].DEEP = 4  # type: ignore[attr-defined]
    states = changed_states()
    assert sorted(states) == ["beside_pack.inner", "beside_state"]
    worker: Any = _on_a_worker(watched, states)
    assert worker is not module
    assert worker.build() == (0.02, 16, {"units": [1, 2, 3]}, 4)
    assert (worker.ADDED, worker.LATE) == (module.ADDED, None)
    assert not hasattr(worker, "THREAD")
    assert worker.__spec__.loader.get_source("beside_state") == TEXT


def test_nothing_goes_along_of_what_nobody_has_set_so_that_an_edited_text_counts(watched: Path) -> None:
    _imported()
    (watched / "beside_state.py").write_text(TEXT.replace(".5", ".125"))
    assert changed_states() == {}
    worker: Any = _on_a_worker(watched, {})
    assert worker.LR == 0.125


def test_a_module_that_is_reloaded_begins_anew(watched: Path) -> None:
    module = _imported()
    module.LR = 0.02
    assert changed_states()
    importlib.reload(module)
    assert changed_states() == {}


def test_of_a_module_imported_before_the_magics_the_text_says_what_it_began_with(folder: Path) -> None:
    module = _imported()
    inner: Any = sys.modules["beside_pack.inner"]
    inner.DEEP = 5
    listener = watch()
    assert sorted(changed_states()) == ["beside_pack.inner"]
    listener.end()
    module.LR = 0.02
    assert sorted(changed_states()) == ["beside_pack.inner", "beside_state"]


def test_values_that_are_too_large_or_hold_themselves_stay(watched: Path) -> None:
    module = _imported()
    module.LARGE = "x" * (module_states.MOST_BYTES + 1)
    assert changed_states() == {}
    del module.LARGE
    module.ENDLESS = []
    module.ENDLESS.append(module.ENDLESS)
    assert changed_states() == {}


def test_who_listens_hears_of_no_module_elsewhere_and_leaves_no_trace(watched: Path) -> None:
    before = list(sys.meta_path)
    with set_states(str(watched), {}):
        assert len(sys.meta_path) == len(before) + 1
        sys.modules.pop("colorsys", None)
        elsewhere: Any = importlib.import_module("colorsys")
        assert "exec_module" not in vars(elsewhere.__spec__.loader)
    assert sys.meta_path == before
