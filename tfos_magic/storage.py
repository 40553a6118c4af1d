"""File systems by path or URL: whatever fsspec opens."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

from tfos_magic.errors import DataError

SEE_THE_STORE = "See that the store runs, and that its address and the credentials are right"
"""What to do where a file system that is not of this machine refuses, for whatever reason."""
_UNKNOWN = "Give a path, or a URL that fsspec knows, such as s3://bucket/folder or hdfs://host/folder"
_OF_STORES = ("AWS_", "AZURE_", "FSSPEC_", "GOOGLE_", "GCSFS_", "HADOOP_")
_SEEN: dict[type, dict[str, str]] = {}
"""Of each kind of file system, the environment in which those were made that fsspec keeps."""
_OF_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
_OF_STORE = re.compile(rf"(?P<scheme>{'|'.join(sorted(_OF_BUCKETS))}):/(?P<slash>/)?(?P<bucket>(?(slash)[^/]*))")


def open_system(where: str) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path on it, without a slash at its end.

    A path without a scheme is of this machine. Raises what fsspec raises: ``ImportError`` for a scheme whose package
    is missing, ``ValueError`` for one that it does not know.
    """
    import fsspec  # here, because a kernel that never trains needs none of it

    if (cut := _OF_STORE.match(where)) and not cut["bucket"]:
        raise DataError(f"{where!r} names no bucket: give a URL such as {cut['scheme']}://bucket/folder")
    if "://" not in where:
        where = os.path.abspath(os.path.expanduser(where))
    system, root = fsspec.core.url_to_fs(where)
    if not is_local(system) and _SEEN.setdefault(type(system), _environment()) != _environment():
        forget_system(system)
        _SEEN[type(system)] = _environment()
        system, root = fsspec.core.url_to_fs(where)
    return system, str(root).rstrip("/")


def _environment() -> dict[str, str]:
    """The variables that say where stores are, and with which credentials."""
    return {name: value for name, value in os.environ.items() if name.startswith(_OF_STORES)}


def forget_system(system: Any) -> None:
    """Let file systems of this kind be made anew: fsspec keeps them, with the credentials that a store has refused."""
    with suppress(AttributeError):
        type(system).clear_instance_cache()


def open_remedy(error: ImportError | ValueError) -> str:
    """What to do where the file system of a URL cannot be had."""
    if isinstance(error, ImportError):
        return "Install the package it names for Spark's Python"
    return _UNKNOWN if "rotocol" in str(error) else SEE_THE_STORE  # "Protocol not known: ..."


def without_password(where: str) -> str:
    """A path or URL as it may be shown."""
    return re.sub(r"(?<=//)([^/@:]*):[^/@]*@", r"\1:…@", where)


def is_local(system: Any) -> bool:
    """True for the file system of this machine."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(system, LocalFileSystem)


def refuse_rewritten(source: Any, path: str, size: int) -> None:
    """Raise ``OSError`` where an open file of Arrow's or fsspec's does not have ``size`` bytes any more."""
    if hasattr(source, "size") and callable(source.size):
        current_size = int(source.size())
    else:
        current_size = int(source.seek(0, 2))
        source.seek(0)
    if current_size != size:
        raise OSError(f"{path} has {current_size} bytes and had {size}: it has been rewritten")


def make_folder(system: Any, path: str) -> None:
    """Make a folder and those above it. An object store has none: there only the bucket is looked for.

    Raises what :func:`refuse_missing_bucket` raises.
    """
    if _has_buckets(system):
        refuse_missing_bucket(system, path)
    else:
        system.makedirs(path, exist_ok=True)


def refuse_missing_bucket(system: Any, path: str) -> None:
    """Raise :class:`DataError` where an object store has no such bucket, which is never made: a wrong name is likelier.

    The same error tells what else is wrong with the store, so that nothing can be said of the bucket.
    """
    if not _has_buckets(system):
        return
    bucket = path.partition("/")[0]
    try:
        with suppress(PermissionError):  # one may be allowed to write and nothing else
            system.mkdir(f"{bucket}/any", create_parents=False)
    except FileNotFoundError:
        raise DataError(
            f"there is no bucket {bucket!r}: correct the path, or make the bucket before, for none is made here"
        ) from None
    except Exception as error:  # every client library has errors of its own
        forget_system(system)
        raise DataError(f"the bucket {bucket!r} cannot be checked: {error}. {SEE_THE_STORE}") from None


def _has_buckets(system: Any) -> bool:
    protocol = system.protocol
    return not _OF_BUCKETS.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)
