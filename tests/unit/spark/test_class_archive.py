"""The archive of the JVM's classes: whose it is, for which JVM, and what becomes of the user's own options."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway

from tfos_magic.spark import class_archive, jvm
from tfos_magic.spark.class_archive import is_ours, make, path_of


def test_an_archive_is_for_one_java_one_spark_and_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert path_of().parent == tmp_path / "tfos_magic"
    assert path_of(tmp_path).parent == tmp_path
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").touch()
    paths = {path_of(), path_of(options="-XX:+UseSerialGC")}
    monkeypatch.setenv("JAVA_HOME", str(java))
    paths.add(path_of())
    os.utime(java / "bin" / "java", (1, 1))  # as a new version of it in the same place
    paths.add(path_of())
    assert len(paths) == 4


def test_only_a_file_that_no_other_user_can_have_written_is_mapped(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    assert not is_ours(archive)
    archive.touch(0o644)
    assert is_ours(archive)
    archive.chmod(0o666)
    assert not is_ours(archive)
    archive.chmod(0o600)
    link = tmp_path / "link.jsa"
    link.symlink_to(archive)
    assert not is_ours(link)


UNFINISHED = """
import os, re, time
path = re.search("ArchiveClassesAtExit=([^ ]+)", os.environ["SPARK_SUBMIT_OPTS"])[1]
open(path, "w").close()
os.fork()
time.sleep(seconds)
"""


def test_an_archive_that_is_not_ready_in_time_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "new" / "classes.jsa"
    monkeypatch.setattr(class_archive, "_PROGRAM", UNFINISHED.replace("seconds", "60"))
    began = time.monotonic()
    assert not make(archive, seconds=1.5)
    assert list(archive.parent.iterdir()) == []
    assert time.monotonic() - began < 30, "what it started is ended with it"
    monkeypatch.setattr(class_archive, "_PROGRAM", UNFINISHED.replace("seconds", "0"))
    assert make(archive, seconds=60)
    assert list(archive.parent.iterdir()) == [archive]


def test_our_options_come_before_the_users_and_go_when_the_jvm_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "classes.jsa"
    seen: dict[str, str] = {}

    def launch(conf: Any, options: Any) -> None:
        seen.update(os.environ)
        raise RuntimeError("no JVM in this test")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(class_archive, "path_of", lambda: archive)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    monkeypatch.delenv("SPARK_LAUNCHER_OPTS", raising=False)
    before = dict(os.environ)
    for expected in (False, True):
        with pytest.raises(RuntimeError, match="no JVM"):
            jvm.launch_jvm(None)
        assert seen["SPARK_SUBMIT_OPTS"].split()[-1] == "-Dmine=1"
        assert (f"-XX:SharedArchiveFile={archive}" in seen["SPARK_SUBMIT_OPTS"].split()) == expected
        assert "-XX:TieredStopAtLevel=1" in seen["SPARK_LAUNCHER_OPTS"]
        assert dict(os.environ) == before
        archive.touch(0o600)
