"""A path means the same in the notebook and on the workers: what the session's default file system makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfos_magic.errors import DataError
from tfos_magic.spark.locations import HOME, absolute_path

LOCAL = "file:///home/ada/notebooks"
HDFS = "hdfs://namenode:8020/user/ada"


@pytest.mark.parametrize(
    ("home", "path", "meant"),
    [
        (LOCAL, "data/x.parquet", "/home/ada/notebooks/data/x.parquet"),
        (LOCAL, "../x/*.csv", "/home/ada/x/*.csv"),
        (LOCAL, "/data/x", "/data/x"),
        (LOCAL, "file:///data/x", "/data/x"),
        (LOCAL, "file:/data/x", "/data/x"),
        (LOCAL, "hdfs://other:9000/x", "hdfs://other:9000/x"),
        (LOCAL, "s3://bucket/a/part-?.parquet", "s3://bucket/a/part-?.parquet"),
        (HDFS, "data/x", "hdfs://namenode:8020/user/ada/data/x"),
        (HDFS, "/data/x", "hdfs://namenode:8020/data/x"),
        (HDFS, "hdfs:///data/x", "hdfs://namenode:8020/data/x"),
        (HDFS, "hdfs:/data/x", "hdfs://namenode:8020/data/x"),
        (HDFS, "file:/data/x", "file:///data/x"),
        (HDFS, "s3a://bucket", "s3a://bucket/"),
    ],
)
def test_paths_are_of_the_default_file_system(
    monkeypatch: pytest.MonkeyPatch, home: str, path: str, meant: str
) -> None:
    monkeypatch.setenv(HOME, home)
    assert absolute_path(path) == meant
    assert absolute_path(meant) == meant


def test_without_a_session_a_path_is_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(HOME, raising=False)
    monkeypatch.chdir(tmp_path)
    assert absolute_path("x") == str(tmp_path / "x")


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        absolute_path("")
