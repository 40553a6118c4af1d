"""The suite's own checks for leaks catch leaks: seen in small suites that leave something behind."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import psutil
import pytest

PLUGIN = """
import conftest
from conftest import *
conftest.GRACE_SECONDS = 0.5
"""
CLEAN = """
def test_it():
    import subprocess, sys, threading
    subprocess.run([sys.executable, "-c", ""], check=True)
    thread = threading.Thread(target=lambda: None, name="tfos-brief")
    thread.start()
"""
LEAKS_ORPHAN = """
def test_it():
    import subprocess, sys
    child = "import time; time.sleep(60)"
    start = f"subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)"
    code = f"import subprocess, sys; print({start}.pid)"
    print("PID", subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
"""
LEAKS_THREAD = """
def test_it():
    import threading
    threading.Thread(target=threading.Event().wait, args=(60,), name="tfos-left", daemon=True).start()
"""


def test_a_suite_that_cleans_up_passes(project: Path, tmp_path: Path) -> None:
    done = _suite(project, tmp_path, CLEAN)
    assert done.returncode == 0, done.stdout


def test_an_orphaned_process_fails_the_suite_and_is_killed(project: Path, tmp_path: Path) -> None:
    done = _suite(project, tmp_path, LEAKS_ORPHAN)
    assert done.returncode == 1
    assert "still running 0 s after the last test" in done.stdout
    left = int(done.stdout.split("PID")[1].split()[0])
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_a_thread_of_ours_left_running_fails_its_test(project: Path, tmp_path: Path) -> None:
    done = _suite(project, tmp_path, LEAKS_THREAD)
    assert done.returncode == 1
    assert "tfos-left" in done.stdout


def test_a_warning_from_our_own_code_is_an_error() -> None:
    with pytest.raises(UserWarning, match="look out"):
        warnings.warn_explicit("look out", UserWarning, "run.py", 1, module="tfos_magic.cluster.runs.run")


def test_a_warning_from_elsewhere_is_only_shown() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.warn_explicit("look out", UserWarning, "theirs.py", 1, module="their.module")
    assert [str(warning.message) for warning in shown] == ["look out"]


def _suite(project: Path, folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Run one test file with the suite's fixtures, as a suite of its own."""
    (folder / "fixtures_with_less_patience.py").write_text(PLUGIN)
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if name != "TFOS_TEST_SUITE"}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(project / "tests"), str(project)])
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "fixtures_with_less_patience"]
    return subprocess.run(
        [*command, str(folder)], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
