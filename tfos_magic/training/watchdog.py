"""A limit on waiting for peers.

TensorFlow's own ``timeout_seconds`` starts two threads per collective and keeps them until the time is over, even when
the operation ended at once: thousands in a minute of training. One thread that looks at the clock does the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PERIOD = 0.5


@dataclass(frozen=True)
class _Wait:
    what: str
    seconds: float
    deadline: float


class Watchdog:
    """Calls ``expire(what, seconds)`` once, from a thread of its own, when a watched wait lasts too long.

    Waits are watched in one thread at a time and may be nested, the innermost being the one that counts.
    """

    def __init__(self, expire: Callable[[str, float], None]) -> None:
        self._expire = expire
        self._wait: _Wait | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tfos-collectives-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watching(self, what: str, seconds: float) -> Iterator[None]:
        outer = self._wait
        self._wait = _Wait(what, seconds, time.monotonic() + seconds)
        try:
            yield
        finally:
            self._wait = outer

    def close(self) -> None:
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(10.0)

    def _watch(self) -> None:
        while not self._closing.wait(PERIOD):
            wait = self._wait
            if wait is not None and time.monotonic() > wait.deadline:
                self._expire(wait.what, wait.seconds)
                return
