"""Keeping TensorFlow's start-up notes out of the notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Drop what C++ code writes to standard error in this block, unless TensorFlow is loaded already.

    A model among a run's results, or a map, loads TensorFlow in the kernel, whose first act is to write half a dozen
    lines about CPU instructions past all of its own log settings. In a kernel, where ``sys.stderr`` is no file, that
    one goes on. What Spark's local Python workers write ends up under the cell as well.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)
