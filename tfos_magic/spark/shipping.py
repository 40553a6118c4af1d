"""This package on the executors: sent there as it is beside the kernel, where it is not the same installation."""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tfos_magic
from tfos_magic.spark.connect.reachability import Session as Session
from tfos_magic.spark.connect.reachability import in_time, is_silent
from tfos_magic.spark.connect.reachability import is_connect as is_connect

SHIPPED_ROOMS = (
    "checkpoints",
    "columns",
    "disk",
    "feed",
    "files",
    "frames",
    "processes",
    "spark",
    "tfrecord",
    "training",
    "transport",
    "values",
    "worker",
)

_shipped: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
_masters: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def master_of(spark: Session) -> str:
    """The master URL, such as ``local[3]``; on a Connect session what the server says, or ``connect``."""
    if not is_connect(spark):
        return str(spark.sparkContext.master)
    if spark in _masters or is_silent(spark):
        return _masters.get(spark, "connect")
    try:
        if said := in_time(lambda: str(spark.conf.get("spark.master")), ""):
            _masters[spark] = said
    except Exception:  # a server may keep this setting to itself; the name is only for people
        _masters[spark] = "connect"
    return _masters.get(spark, "connect")


def runs_in_this_process_tree(spark: Session) -> bool:
    """True where the executors share this machine's Python: local mode of a classic session."""
    return not is_connect(spark) and master_of(spark).startswith("local") and "cluster" not in master_of(spark)


def ship_package(spark: Session) -> None:
    """Send this package's executor side to the executors, so that they need not have it and always match the kernel.

    Nothing is sent in local mode, where executors are this installation. What the package needs (TensorFlow, pyzmq and
    so on) is not sent: that is for the cluster's own environment.
    """
    if runs_in_this_process_tree(spark):
        return
    content = _zip_package()
    name = f"tfos_magic-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    if is_connect(spark):
        _add_artifact(spark, name, content, pyfile=True)
    else:
        _add_py_file(spark, name, content)


def ship_file(spark: Session, kind: str, content: bytes) -> str:
    """Send bytes to the executors of a Connect session, once; gives the name by which :func:`read_shipped` finds them.

    What travels with a query must fit into one of Connect's messages, which end at 128 MB, and goes to every task.
    """
    name = f"tfos_magic-{kind}-{hashlib.sha256(content).hexdigest()[:24]}"
    shipped = _shipped.setdefault(spark, set())
    if name not in shipped:
        _add_artifact(spark, name, content, file=True)
        shipped.add(name)
    return name


def read_shipped(name: str) -> bytes:
    """The bytes that :func:`ship_file` sent; for tasks."""
    from pyspark import SparkFiles

    return Path(SparkFiles.getRootDirectory(), name).read_bytes()


def _add_artifact(spark: Session, name: str, content: bytes, **kind: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="tfos_magic-") as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            spark.addArtifacts(str(path), **kind)
        except Exception as error:
            # The name holds the content's hash: what is there already is this very file.
            if "ALREADY_EXISTS" not in str(error):
                raise


def _add_py_file(spark: Session, name: str, content: bytes) -> None:
    # Spark serves the file from where it lies, so it must stay as long as the session: in the session's own folder.
    path = Path(spark.sparkContext._temp_dir) / name
    if not path.exists():
        path.write_bytes(content)
        spark.sparkContext.addPyFile(str(path))
        # Spark lets this process import it too, where it is this package without its rooms, and goes with the session.
        sys.path[:] = [entry for entry in sys.path if Path(entry).name != name]


@lru_cache(maxsize=1)
def _zip_package() -> bytes:
    """The modules that executors run, as a zip with fixed dates, so that equal code gives an equal file."""
    root = Path(tfos_magic.__file__).parent
    files = sorted([*root.glob("*.py"), *(f for room in SHIPPED_ROOMS for f in (root / room).rglob("*.py"))])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            info = zipfile.ZipInfo(str(Path("tfos_magic") / file.relative_to(root)), (2020, 1, 1, 0, 0, 0))
            archive.writestr(info, file.read_bytes())
    return buffer.getvalue()
