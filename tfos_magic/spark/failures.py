"""What Spark's errors mean. Classic sessions, Connect and Python workers have no common class for them: texts do."""

from __future__ import annotations

import re
import sys

from tfos_magic.errors import DataError, FeedError, SpoolFull, TFOSError, UsageError
from tfos_magic.spark.connect.reachability import has_closed, has_gone

_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r"^(\s+|Traceback \(most recent call last\)|The above exception|During handling|\s*at |$)")
_OWN = re.compile(r"tfos_magic\.errors\.(\w+): (.*?)(?:\n|$)")
_RAISED: dict[str, type[TFOSError]] = {kind.__name__: kind for kind in (DataError, FeedError, SpoolFull, UsageError)}
_ENDED = "SparkContext was shut down"


def cause_of(error: object) -> str:
    """The line that names the cause: the end of a Python worker's traceback, else the first line."""
    text = str(error)
    if _TRACEBACK in text:
        for line in text[text.rindex(_TRACEBACK) :].splitlines()[1:]:
            if not _FRAME.match(line):
                return line.strip()
    reason = re.search(r"Job aborted due to stage failure: (.+)", text)
    lines = [
        line for line in text.splitlines() if line.strip() and not line.startswith("An error occurred while calling")
    ]
    line = reason.group(1) if reason else (lines or ["no reason given"])[0]
    return re.sub(r"^.*?(?:Exception|Error): ", "", line).split(" SQLSTATE")[0].strip()


def own_error(error: object) -> TFOSError | None:
    """The error of this package that a task raised last, as it was there; None where it was none of ours."""
    matches = [(name, text) for name, text in _OWN.findall(str(error)) if name in _RAISED]
    return _RAISED[matches[-1][0]](matches[-1][1].strip()) if matches else None


def is_cancelled(error: object) -> bool:
    """Whether somebody cancelled the job."""
    return bool(re.search(r"\[SPARK_JOB_CANCELLED\]|OPERATION_CANCELED", str(error)))


def has_ended(error: object) -> bool:
    """Whether the session was stopped, or its Connect server knows it no more."""
    return _ENDED in str(error) or has_closed(error) or has_gone(error)


def lost_executor(error: object) -> bool:
    """Whether an executor, or the session itself, is gone."""
    lost = r"ExecutorLostFailure|Connection refused|StatusCode.UNAVAILABLE"
    return has_ended(error) or bool(re.search(lost, str(error)))


def is_missing_file(error: object) -> bool:
    """Whether a file of a source is not there any more."""
    return isinstance(error, FileNotFoundError) or "FileNotFoundException" in str(error)


def with_remedy(cause: str) -> str:
    """A cause, with what to do about it where that is known."""
    if "ResourceProfiles are only supported" in cause:
        return (
            f"{cause.rstrip('. ')}. Spark reserves cores or GPUs for tasks on a standalone master, YARN or "
            "Kubernetes only: leave out --cores and --gpus here, or use a session with such a master."
        )
    if "ModuleNotFoundError" not in cause:
        return cause
    return (
        f"{cause}. The Python of Spark's workers lacks it: set PYSPARK_PYTHON to one that has it, such as "
        f"{sys.executable}, before the session is made."
    )
