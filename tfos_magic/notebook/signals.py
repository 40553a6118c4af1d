"""Making an interrupt mean KeyboardInterrupt while a magic waits, whoever else has set a handler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tfos_magic.spark.session import sparing


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT raises ``KeyboardInterrupt`` in this block.

    In a terminal, PySpark's own handler would cancel all jobs of the session: the user's, and the workers' own. After
    the block it spares the workers'.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, sparing(previous))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT that comes in this block, of the main thread, is heard at its end."""
    came: list[tuple[int, FrameType | None]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if came and callable(previous):
            previous(*came[0])
