"""Ground rules of the whole suite: a quiet, local environment, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path

import psutil
import pytest

from tests import jvm

# Inherited by every process the suite starts, however far down and whoever adopts it: so leaks can be told from
# processes of other suites on the same machine.
MARK = "TFOS_TEST_SUITE"
SUITE = os.environ.setdefault(MARK, uuid.uuid4().hex)
if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # suites side by side look after their own processes only
    SUITE = os.environ[MARK] = f"{SUITE}-{worker}"

# Where programs leave their temporary files, killed ones too; not in pytest's own folders, whose long names are more
# than the path of a socket may have, and which are kept.
if "PYTEST_XDIST_WORKER" not in os.environ:
    temporary = Path(os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()))
    for left in temporary.glob("tfos-suite-[0-9]*-*"):  # by suites that were killed
        if not psutil.pid_exists(int(left.name.split("-")[2])):
            shutil.rmtree(left, ignore_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix=f"tfos-suite-{os.getpid()}-", dir=temporary)
    # After multiprocessing has deleted its own folder in there, which has the priority -100.
    Finalize(None, shutil.rmtree, args=(tempfile.tempdir, True), exitpriority=-200)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ.update(jvm.settings())
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

# As the project promises for a kernel that goes.
GRACE_SECONDS = 10.0
THREAD_PREFIX = "tfos"
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# Files that take long come first, so that two processes end at nearly the same time. Those of a folder stay together,
# for they share what is slow to start.
FOLDERS = (
    "notebooks",
    "spark",
    "faults",
    "kernel",
    "browser",
    "ml",
    "ported",
    "frames",
    "docs",
    "corpus",
    "training",
    "security",
    "packaging",
    "unit",
)
WITH_SPARK = FOLDERS[:9]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests in the order of ``FOLDERS``; tests of other folders come last."""
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(FOLDERS)}
    items.sort(key=lambda item: min((rank[up] for up in item.path.parents if up in rank), default=len(rank)))


@pytest.fixture(scope="session", autouse=True)
def quick_jvms(request: pytest.FixtureRequest) -> None:
    """Where tests use Spark, see that there is an archive of its classes."""
    folders = {Path(__file__).parent / name for name in WITH_SPARK}
    if any(folders.intersection(item.path.parents) for item in request.session.items):
        jvm.make_archive()


@pytest.fixture(scope="session", autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail the suite when a process that it started outlives it, and its JVM as a kernel's does."""
    yield
    _end_jvm()
    _, leaked = psutil.wait_procs(_processes_of_the_suite(), timeout=GRACE_SECONDS)
    leaked = [process for process in leaked if _is_marked(process)]  # and not ended, with a parent yet to take note
    reports = [_report(process) for process in leaked]
    for process in leaked:
        process.kill()
    assert not reports, f"still running {GRACE_SECONDS:.0f} s after the last test:\n" + "\n".join(reports)


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test that leaves one of our threads running; those of wider fixtures were there before it."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    ours = [t for t in threading.enumerate() if t not in before and t.name.startswith(THREAD_PREFIX)]
    for thread in ours:
        thread.join(timeout=max(0.0, deadline - time.monotonic()))
    leaked = sorted(thread.name for thread in ours if thread.is_alive())
    assert not leaked, f"threads still running {GRACE_SECONDS:.0f} s after the test: {leaked}"


@pytest.fixture(scope="session")
def project() -> Path:
    """The top folder of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def artefacts(project: Path) -> Path:
    """A folder for screenshots, logs and notebooks worth a look after the run; git ignores it."""
    folder = project / "tests" / "artefacts"
    folder.mkdir(exist_ok=True)
    return folder


def _end_jvm() -> None:
    """End this process's JVM, if it has one, as a kernel does by ending.

    Spark may leave a Python worker behind that it was about to start when the session stopped: the worker waits for a
    word from the JVM, which keeps the connection until it ends.
    """
    spark = sys.modules.get("pyspark.core.context")
    gateway = spark and spark.SparkContext._gateway
    if gateway:
        gateway.shutdown()
        gateway.proc.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # then it is told of below
            gateway.proc.wait(GRACE_SECONDS)


def _processes_of_the_suite() -> list[psutil.Process]:
    """All marked processes but ourselves, and but helpers that end by themselves when this process does."""
    here = psutil.Process()
    spared = {here.pid, *(parent.pid for parent in here.parents())}
    spared |= {child.pid for child in here.children() if any(helper in _command(child) for helper in HELPERS)}
    return [process for process in psutil.process_iter() if process.pid not in spared and _is_marked(process)]


def _is_marked(process: psutil.Process) -> bool:
    try:
        return process.environ().get(MARK) == SUITE and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone meanwhile, or another user's
        return False


def _report(process: psutil.Process) -> str:
    """Whose a process is, and where it stands."""
    with suppress(psutil.NoSuchProcess):
        dump = [str(Path(sys.executable).with_name("py-spy")), "dump", "--pid", str(process.pid)]
        stack = subprocess.run(dump, capture_output=True, text=True, timeout=60)
        age = time.time() - process.create_time()
        return "\n".join(
            [
                f"{process.pid}: {_command(process)}, {process.status()}, {age:.0f} s old",
                f"begun in {process.environ().get('PYTEST_CURRENT_TEST')}; parents {process.parents()}",
                f"connections {process.net_connections('all')}",
                stack.stdout + stack.stderr,
            ]
        )
    return f"{process.pid}: gone meanwhile"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
