"""Which files a dataset reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfos_magic.errors import DataError
from tfos_magic.files.opening import open_source


def test_a_path_that_is_named_twice_is_refused_as_files_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x\n1\n2\n")
    assert open_source([str(path)]).schema.names == ["x"]
    with pytest.raises(DataError, match=r"rows\.csv': each file is read once"):
        open_source([str(path), str(path)])
