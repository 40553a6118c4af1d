"""Paths as the session means them: against its default file system, in the notebook and in cells alike."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from typing import Any

from tfos_magic.errors import DataError
from tfos_magic.spark.shipping import Session, is_connect

HOME = "TFOS_HOME_URL"
"""Environment variable of workers: the URL of the driver's working directory."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?$", re.DOTALL)


def absolute_path(path: str) -> str:
    """Give ``path`` as every worker opens it: ``/data/x`` on local disks, ``hdfs://host:port/data/x`` elsewhere.

    A path without a scheme is on the session's default file system (``fs.defaultFS``), and a relative one below the
    working directory there: that of Spark's driver on local disks, ``/user/NAME`` elsewhere. In a cell on the workers
    this is the same path as in the notebook; without a session it is of this machine. Where local disks are not the
    default, a path there is ``file:///data/x``. After TensorFlowOnSpark's ``ctx.absolute_path``. Raises
    :class:`DataError` for an empty path.
    """
    if not path:
        raise DataError("the path is empty: give a file, a folder or a glob")
    scheme, host, home = _parts(_home())
    if match := _URL.match(path):
        url_scheme = match[1].lower()
        # "hdfs:///x" names no host: Hadoop takes the default file system's.
        resolved = _url(url_scheme, match[2] or (host if url_scheme == scheme else ""), match[3] or "/")
        return f"file://{resolved}" if url_scheme == "file" != scheme else resolved
    if scheme == "file":
        path = os.path.expanduser(path)
    return _url(scheme, host, posixpath.join(home, path))


def home_of(spark: Session) -> str:
    """The URL of a session's working directory on its default file system."""
    if is_connect(spark):
        default = str(spark.conf.get("spark.hadoop.fs.defaultFS", "file:///"))
        user, here = os.environ.get("USER", ""), os.getcwd()
    else:
        jvm: Any = spark.sparkContext._jvm
        # What Spark's readers and writers take relative paths by; the kernel may have gone elsewhere since.
        here = str(jvm.java.lang.System.getProperty("user.dir"))
        default = str(spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///"))
        user = str(jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName())
    if default.startswith("file:"):
        return f"file://{here}"
    return f"{default.rstrip('/')}/user/{user}"


def _home() -> str:
    if known := os.environ.get(HOME):
        return known
    if "pyspark.sql" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            return home_of(session)
    return f"file://{os.getcwd()}"


def _parts(url: str) -> tuple[str, str, str]:
    match = _URL.match(url)
    assert match is not None
    return match[1], match[2] or "", match[3] or "/"


def _url(scheme: str, host: str, path: str) -> str:
    path = "/" + posixpath.normpath(path).lstrip("/")
    return path if scheme == "file" else f"{scheme}://{host}{path}"
