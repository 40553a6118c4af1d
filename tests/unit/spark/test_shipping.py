"""What is sent to the executors, and what that leaves in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfos_magic.spark.shipping import ship_package


def test_what_is_sent_is_not_what_this_process_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Path] = []

    def add_py_file(path: str) -> None:
        sent.append(Path(path))
        sys.path.insert(1, str(tmp_path / "userFiles" / Path(path).name))  # as Spark does

    monkeypatch.setattr(sys, "path", [*sys.path])
    before = [*sys.path]
    context = SimpleNamespace(master="spark://alpha:7077", _temp_dir=str(tmp_path), addPyFile=add_py_file)
    ship_package(SimpleNamespace(sparkContext=context))
    assert [path.suffix for path in sent] == [".zip"]
    assert sys.path == before
