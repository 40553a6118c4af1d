"""A thread that looks at the server of a Connect session, so that nobody waits for ever for one that is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tfos_magic.spark.connect.reachability import AGAIN_SECONDS, PROBE_SECONDS, Look, Session, is_connect, is_silent

LOOK_SECONDS = 3.0


class ServerWatch:
    """Looks at the server of a Connect session every few seconds, in a thread of its own, from :meth:`start` on; at
    nothing where the session is a classic one.

    ``on_end`` is told there, once, why the session is of no use any more.
    """

    def __init__(self, spark: Session, on_end: Callable[[str], object]) -> None:
        self._spark, self._on_end = spark, on_end
        self._changed = threading.Condition()
        self._begun = self._done = 0
        self._wanted = self._over = False
        self._look: Look | None = None
        self._thread = threading.Thread(target=self._work, name="tfos-server-watch", daemon=True)

    def start(self) -> None:
        if is_connect(self._spark) and self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread() and not is_silent(self._spark):
            self._thread.join(PROBE_SECONDS)

    @property
    def waits(self) -> str:
        """What is waited for while the server does not answer; else empty."""
        look = self._look
        if look is None or not look.waits:
            return ""
        return f"{look.waits}, and is given up after {look.limit:.0f} s of that"

    def settle(self, waiting: Callable[[str, float], object]) -> None:
        """Return when the server answers, asked from now on, or its session has ended; ``waiting`` is told of it."""
        with self._changed:
            asked, self._wanted = self._begun + 1, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._settled(asked), AGAIN_SECONDS)
        while True:
            with self._changed:
                if self._settled(asked):
                    return
                self._changed.wait(AGAIN_SECONDS)
                look = self._look
            if look is not None and look.waits:
                waiting(look.waits, look.until)

    def _settled(self, asked: int) -> bool:
        answers = self._done >= asked and self._look is not None and self._look.answers
        return answers or self._over or not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._over:
                    return
                self._begun, self._wanted = self._begun + 1, False
            look = Look(self._spark)
            if look.end and not self._over:
                self._on_end(look.end)
            with self._changed:
                self._look, self._done = look, self._begun
                self._over = self._over or bool(look.end)
                self._changed.notify_all()
                pause = LOOK_SECONDS if look.answers else AGAIN_SECONDS
                self._changed.wait_for(lambda: self._over or self._wanted, pause)
