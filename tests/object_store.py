"""An object store that is served on this machine, for tests of what is written to one and read from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import s3fs
from moto.server import ThreadedMotoServer


@contextmanager
def object_store(*buckets: str) -> Iterator[ThreadedMotoServer]:
    """Serve ``s3://`` with ``buckets``; processes that begin meanwhile find it by their environment."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        s3fs.S3FileSystem.clear_instance_cache()
        for bucket in buckets:
            s3fs.S3FileSystem().makedirs(bucket, exist_ok=True)  # servers of one process share them
        try:
            yield server
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            server.stop()


def buckets() -> list[str]:
    """Those that there are."""
    system = s3fs.S3FileSystem()
    system.invalidate_cache()
    return sorted(system.ls(""))
