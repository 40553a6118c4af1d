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


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("rows.csv", "delimiter, column_names, compression, encoding"),
        ("rows.tfrecord", "compression, record_type"),
        ("rows.parquet", "none"),
    ],
)
def test_an_option_that_a_format_does_not_have_is_refused_with_those_that_it_has(
    tmp_path: Path, name: str, has: str
) -> None:
    (tmp_path / name).write_text("x\n1\n")
    with pytest.raises(DataError, match=f"has no option 'colour': it has {has}"):
        open_source(str(tmp_path / name), colour="red")
