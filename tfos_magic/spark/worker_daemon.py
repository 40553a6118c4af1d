"""Spark's daemon of Python workers, with loaded what our tasks need: ``spark.python.daemon.module`` of our sessions.

Spark forks its Python workers from one process. What is loaded there has its memory in all of them at once, where each
would load it by itself: some 50 MB and most of a second.
"""

from __future__ import annotations

import gc
import importlib
import sys
from contextlib import redirect_stdout, suppress

_LOADED = (
    "numpy",
    "pyarrow.flight",
    "pyspark.worker",
    "tfos_magic.worker.agent",
    "tfos_magic.feed.task.feed_partition",
)


def preload() -> None:
    """Import what workers need, and keep the garbage collector from writing to it, which would end the sharing."""
    # Standard output is where Spark reads the daemon's port.
    with redirect_stdout(sys.stderr):
        for name in _LOADED:
            with suppress(ImportError):  # the task that needs it will say so
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    preload()
    manager()
