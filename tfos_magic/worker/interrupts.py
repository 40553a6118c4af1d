"""Ending a cell that is asked to stop where it takes no step at which all ranks would end together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tfos_magic.errors import RunStopped

PERIOD = 0.2
"""Seconds between two tries: Python hears of a signal when it is back from whatever it has called."""

STEP_SECONDS = 0.5
"""For so long a cell that trains may come to its next step, at which all ranks stop."""

_OURS = "tfos_magic.training"


class Interrupts:
    """Raises ``KeyboardInterrupt`` in the main thread, where that is :meth:`allowed`. Made in the main thread."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._over.set()
        self._is_busy: Callable[[], bool] | None = None
        self._sent = False

    def forget(self) -> None:
        """Another cell begins, of which nobody has asked anything yet."""
        self._sent = False

    def asked_for(self, error: BaseException) -> bool:
        """Whether a cell that ``error`` ended was asked to end; a ``KeyboardInterrupt`` may be its own."""
        return isinstance(error, RunStopped) or (isinstance(error, KeyboardInterrupt) and self._sent)

    @contextmanager
    def allowed(self, is_busy: Callable[[], bool] | None = None) -> Iterator[None]:
        """Let an interrupt end the block. Where ``is_busy`` is given the block trains: it is let go on while that is
        true, and within our own functions, which ranks are to leave together."""
        previous = signal.signal(signal.SIGINT, self._interrupt)
        self._is_busy, self._over = is_busy, threading.Event()
        if self._sent:  # before the block
            self.send()
        try:
            yield
        finally:
            self._over.set()
            signal.signal(signal.SIGINT, previous)

    def send(self) -> None:
        """Interrupt the block that is under way, or the next one of this cell; from any thread."""
        self._sent = True
        threading.Thread(target=self._send, args=(self._over,), name="tfos-interrupts", daemon=True).start()

    def _send(self, over: threading.Event) -> None:
        if self._is_busy is not None:
            over.wait(STEP_SECONDS)
        while not over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            over.wait(PERIOD)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if self._is_busy is not None and (self._is_busy() or _is_within_ours(frame)):
            return
        if not self._over.is_set():
            self._over.set()
            raise KeyboardInterrupt


def _is_within_ours(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_OURS):
            return True
        frame = frame.f_back
    return False
