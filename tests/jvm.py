"""The JVMs of the suite: they live for seconds, so what counts is how quickly they start.

They take one compiler and one collector thread, and map an archive of Spark's classes that the first suite on a machine
makes: that halves the processor time of a session's start.
"""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

from tfos_magic.spark import class_archive

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTORS = {"spark.executor.extraJavaOptions": QUICK}
FOLDER = Path(__file__).resolve().parent.parent / ".pytest_cache" / "jvm"
MAKING_SECONDS = 150.0


def settings() -> dict[str, str]:
    """The environment of what starts JVMs. ``TMPDIR`` is obeyed; a configuration of the user's is not."""
    files = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
    mapped = class_archive.mapping(archive())
    return {
        "SPARK_CONF_DIR": str(FOLDER / "conf"),  # stays empty: a JVM takes no archive with files on its class path
        "SPARK_SUBMIT_OPTS": f"{QUICK} {files} {mapped}",
        "SPARK_LAUNCHER_OPTS": QUICK,
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {files}",
    }


def archive() -> Path:
    """Where the archive of the suite is, or will be: a JVM does without one that is not there."""
    return class_archive.path_of(FOLDER, QUICK)


def make_archive() -> None:
    """Make the archive, unless it is there or another suite is at it. One that cannot be made only costs time."""
    target = archive()
    (FOLDER / "conf").mkdir(parents=True, exist_ok=True)
    with (FOLDER / "making").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if not target.exists():
            class_archive.make(target, QUICK, MAKING_SECONDS)


if __name__ == "__main__":
    make_archive()
