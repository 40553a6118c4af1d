"""What a notebook sets in modules beside it is there on workers, which import them anew."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pyspark
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
    loaded = module_states._loaded  # other tests' modules among them
    ours = lambda: [module for module in loaded() if module.__name__.startswith("beside_")]  # noqa: E731
    monkeypatch.setattr(module_states, "_loaded", ours)
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


def _states() -> dict[str, str]:
    states, notices = changed_states()
    assert notices == []
    return states


def _on_a_worker(folder: Path, states: dict[str, str], name: str = "beside_state") -> Any:
    with pytest.MonkeyPatch.context() as patch:  # the notebook's process is another one
        patch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if not isinstance(finder, ImportListener)])
        with local_modules(str(folder), [], ()), set_states(states):
            return importlib.import_module(name)


def test_what_was_set_is_there_and_what_was_not_is_as_imported(watched: Path) -> None:
    module = _imported()
    module.LR, module.ADDED = 0.02, ("a", b"b", {1, None}, float("inf"))
    module.CONFIG["units"].append(3)
    module.LATE = module.LOCK = threading.Lock()
    module._handle = object()
    sys.modules["beside_pack.inner"].DEEP = 4  # type: ignore[attr-defined]
    states, [notice] = changed_states()
    assert notice.startswith("beside_state.LATE, beside_state.LOCK: set after the import, and not sent to workers")
    assert sorted(states) == ["beside_pack.inner", "beside_state"]
    worker = _on_a_worker(watched, states)
    assert worker is not module
    assert worker.build() == (0.02, 16, {"units": [1, 2, 3]}, 3)
    assert (worker.ADDED, worker.LATE) == (module.ADDED, None)
    assert not hasattr(worker, "LOCK")
    assert worker.__spec__.loader.get_source("beside_state") == TEXT


NETS = """
import dataclasses, enum
import numpy as np
import beside_config
from beside_config import RATE, options
DOUBLE = RATE * 2
Kind = enum.Enum("Kind", "A B")
class Net:
    units, rate = 4, RATE
    class Head:
        bias = True
    @property
    def wide(self):
        return self.units > 8
    def call(self, x):
        return x
@dataclasses.dataclass
class Options:
    depth: int = 2
    table: object = None
best, SCALE = Options(), np.ones(3)
def loss(x): return x
def other_loss(x): return -x
"""
CONFIG = "RATE = .5\nclass Box: pass\noptions = Box()\noptions.depth = 1\n"


@pytest.fixture
def library(watched: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    elsewhere = tmp_path_factory.mktemp("library")
    monkeypatch.syspath_prepend(str(elsewhere))
    (elsewhere / "beside_nets.py").write_text(NETS)
    (elsewhere / "beside_config.py").write_text(CONFIG)
    return elsewhere


def _afresh(folder: Path, states: dict[str, str], name: str) -> Any:
    for module in [name for name in sys.modules if name.startswith("beside_")]:
        del sys.modules[module]
    return _on_a_worker(folder, states, name)


def test_classes_and_objects_of_modules_elsewhere_are_as_the_notebook_set_them(watched: Path, library: Path) -> None:
    nets: Any = importlib.import_module("beside_nets")
    assert changed_states() == ({}, [])
    nets.Net.units, nets.Net.Head.bias, nets.best.depth = 16, False, 7
    nets.best.table, nets.SCALE[1] = {"kind": nets.Kind.B}, 9
    nets.loss = nets.other_loss
    worker = _afresh(watched, _states(), "beside_nets")
    assert (worker.Net.units, worker.Net.Head.bias, worker.Net().wide) == (16, False, True)
    assert (worker.best, worker.best is nets.best) == (worker.Options(7, {"kind": worker.Kind.B}), False)
    assert worker.SCALE.tolist() == [1, 9, 1]
    assert worker.loss is worker.other_loss


def test_what_a_module_read_from_another_is_what_it_was_when_it_did(watched: Path, library: Path) -> None:
    nets: Any = importlib.import_module("beside_nets")
    config: Any = sys.modules["beside_config"]
    config.RATE, config.options.depth = 3.0, 5
    before = (nets.RATE, nets.DOUBLE, nets.Net.rate)
    worker = _afresh(watched, _states(), "beside_nets")
    assert (worker.RATE, worker.DOUBLE, worker.Net.rate, worker.beside_config.RATE) == (*before, 3.0)
    assert worker.options is worker.beside_config.options
    assert worker.options.depth == 5


def test_what_a_module_read_from_another_after_it_was_set_is_that(watched: Path, library: Path) -> None:
    config: Any = importlib.import_module("beside_config")
    config.RATE = 3.0
    importlib.import_module("beside_nets")
    worker = _afresh(watched, _states(), "beside_nets")
    assert (worker.RATE, worker.DOUBLE, worker.Net.rate) == (3.0, 6.0, 3.0)


def _of_the_notebook(x: Any) -> Any:
    return x


def test_what_cannot_be_sent_is_told(watched: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nets: Any = importlib.import_module("beside_nets")
    monkeypatch.setattr(_of_the_notebook, "__module__", "__main__")
    nets.loss = nets.Net.call = _of_the_notebook
    nets.TABLE = numpy.zeros(module_states.MOST_BYTES)
    nets.best.table = {"lock": threading.Lock()}
    nets.spark = pyspark.SparkConf(loadDefaults=False)
    _, [notice] = changed_states()
    assert notice.partition(":")[0] == "beside_nets.Net.call, beside_nets.best, beside_nets.loss, beside_nets.TABLE"


def test_of_classes_imported_before_the_magics_the_text_says_what_they_began_with(folder: Path) -> None:
    (folder / "beside_nets.py").write_text(
        "class Net:\n    units, rate = 4, .5\n    class Head:\n        bias = True\n"
    )
    nets: Any = importlib.import_module("beside_nets")
    nets.Net.Head.bias = False
    assert sorted(_states()) == ["beside_nets"]
    assert _afresh(folder, _states(), "beside_nets").Net.Head.bias is False


def test_nothing_goes_along_of_what_nobody_has_set_so_that_an_edited_text_counts(watched: Path) -> None:
    _imported()
    (watched / "beside_state.py").write_text(TEXT.replace(".5", ".125"))
    assert changed_states() == ({}, [])
    worker = _on_a_worker(watched, {})
    assert worker.LR == 0.125


def test_a_module_that_is_reloaded_begins_anew(watched: Path) -> None:
    module = _imported()
    module.LR = 0.02
    assert _states()
    importlib.reload(module)
    assert changed_states() == ({}, [])


def test_of_a_module_imported_before_the_magics_the_text_says_what_it_began_with(folder: Path) -> None:
    module = _imported()
    inner: Any = sys.modules["beside_pack.inner"]
    inner.DEEP = 5
    listener = watch()
    assert sorted(_states()) == ["beside_pack.inner", "beside_state"]  # which reads it
    listener.end()
    module.LR = 0.02
    assert _on_a_worker(folder, _states()).build() == module.build()


def test_what_a_text_sets_twice_is_not_taken_for_what_the_notebook_set(folder: Path) -> None:
    text = "import threading\nlock = None\nif True:\n    lock = threading.Lock()\nCOUNT = 0\n"
    (folder / "beside_twice.py").write_text(f"{text}def count():\n    global COUNT\n    COUNT += 1\n    return COUNT\n")
    module: Any = importlib.import_module("beside_twice")
    module.count()
    assert changed_states() == ({}, [])
    module.COUNT = 5
    assert sorted(_states()) == ["beside_twice"]


def test_values_that_are_too_large_stay_and_such_that_hold_themselves_go(watched: Path) -> None:
    module = _imported()
    module.LARGE = "x" * (module_states.MOST_BYTES + 1)
    states, [notice] = changed_states()
    assert (states, notice.partition(":")[0]) == ({}, "beside_state.LARGE")
    del module.LARGE
    module.ENDLESS = []
    module.ENDLESS.append(module.ENDLESS)
    endless = _on_a_worker(watched, _states()).ENDLESS
    assert endless[0] is endless


def test_who_listens_hears_of_no_module_elsewhere_and_leaves_no_trace(watched: Path) -> None:
    before = list(sys.meta_path)
    with set_states({}):
        assert len(sys.meta_path) == len(before) + 1
        sys.modules.pop("colorsys", None)
        elsewhere: Any = importlib.import_module("colorsys")
        assert "exec_module" not in vars(elsewhere.__spec__.loader)
    assert sys.meta_path == before
