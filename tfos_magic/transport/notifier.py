"""Telling of changes in a thread of its own, so that who listens holds nothing up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context


class Notifier:
    """Calls ``tell`` soon after :meth:`soon`, however often that is asked for, with ``pause`` seconds between calls.

    The thread has the context of who asked first: what is shown finds the cell it belongs to by that.
    """

    def __init__(self, tell: Callable[[], None], pause: float) -> None:
        self._tell, self._pause = tell, pause
        self._news, self._over = threading.Event(), threading.Event()
        self._turn = threading.RLock()
        self._thread: threading.Thread | None = None

    def soon(self) -> None:
        """Call before long, from the notifier's thread."""
        self._news.set()
        if self._thread is None and not self._over.is_set():
            work = copy_context().run
            self._thread = threading.Thread(target=work, args=(self._work,), name="tfos-run-news", daemon=True)
            self._thread.start()

    def finish(self, patience: float) -> None:
        """Call once more, now, and never again; a call that goes on is waited for, for ``patience`` seconds."""
        self._over.set()
        self._news.set()
        if self._turn.acquire(timeout=patience):
            try:
                self._tell()
            finally:
                self._turn.release()

    @property
    def ident(self) -> int | None:
        """The thread's, once there is one."""
        return self._thread.ident if self._thread else None

    def _work(self) -> None:
        while not self._over.is_set():
            self._news.wait()
            self._news.clear()
            with self._turn:
                if not self._over.is_set():
                    self._tell()
            self._over.wait(self._pause)
