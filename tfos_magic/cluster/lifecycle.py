"""Whether a cluster lives, what it does by itself, and its quick end with the kernel, as Jupyter wants it."""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tfos_magic.cluster.startup import wait_until
from tfos_magic.cluster.workers import ClusterPhase
from tfos_magic.errors import ClusterError

log = logging.getLogger("tfos_magic.cluster")

LOOK_SECONDS = 1.0


class Lifecycle:
    """The ``phase`` of a cluster and, at its end, the ``reason``."""

    def __init__(self) -> None:
        self.phase = ClusterPhase.STARTING
        self.reason = ""
        self._changed = threading.Condition(threading.RLock())
        self._over = threading.Event()
        self.session_ended = False
        self.unanswered: Callable[[], str] = lambda: ""
        """What is waited for where the session's server does not answer; else empty."""

    @property
    def lock(self) -> threading.Condition:
        """Hold it to read several things that must belong together."""
        return self._changed

    def fail(self, reason: str, *, session: bool = False) -> None:
        """The cluster is lost, unless it has ended already; ``session`` says that the Spark session is lost with it."""
        with self._changed:
            if not self.phase.ended:
                self.phase, self.reason, self.session_ended = ClusterPhase.FAILED, reason, session
            self._over.set()
            self._changed.notify_all()

    def end(self, reason: str = "") -> None:
        """The cluster was stopped on purpose, unless it had failed before."""
        with self._changed:
            if not self.phase.ended:
                self.phase, self.reason = ClusterPhase.STOPPED, reason
            self._over.set()
            self._changed.notify_all()

    def heed(self) -> str:
        """Raise as :meth:`check` does; gives what is waited for where the session's server does not answer."""
        self.check()
        return self.unanswered()

    def wait_until(self, is_over: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
        """As :func:`~tfos_magic.cluster.startup.wait_until`, but a server that does not answer is told of first."""
        wait_until(self._changed, is_over, seconds, lambda: self.unanswered() or what())

    def await_end(self, seconds: float) -> bool:
        """True when the cluster has ended within so many ``seconds``."""
        return self._over.wait(seconds)

    def check(self, kind: type[ClusterError] = ClusterError) -> None:
        """Raise ``kind`` when the cluster has ended, saying why."""
        with self._changed:
            if self.phase is ClusterPhase.FAILED:
                raise (ClusterError if self.session_ended else kind)(self.reason)
            if self.phase is ClusterPhase.STOPPED:
                why = f", for {self.reason}" if self.reason else ""
                raise kind(f"This cluster was stopped{why}: start one with %tfos start.")


class Upkeep(threading.Thread):
    """What a ``cluster`` does by itself while it lives: it ends after so many seconds without a run, and a run that
    goes on gets more workers where Spark has free slots."""

    def __init__(self, cluster: Any) -> None:
        super().__init__(name="tfos-upkeep", daemon=True)
        self._cluster, self._life = cluster, cluster.membership

    def start(self) -> None:
        """Nothing is done where nothing is to be done."""
        spec = self._cluster.spec
        if spec.idle_timeout or spec.most_workers > spec.workers:
            super().start()

    def run(self) -> None:
        idle = self._cluster.spec.idle_timeout
        self._cluster.queue.touch()
        while not self._life.await_end(min(LOOK_SECONDS, (idle or math.inf) / 4)):
            if idle and self._cluster.queue.do_if_idle(idle, self._end):
                self._cluster.stop()
            try:
                self._cluster.grow()
            except Exception as error:  # of Spark as well, whose session may have ended
                log.info("the cluster does not grow: %s", error)

    def _end(self) -> None:
        self._life.end(f"no run came for {self._cluster.spec.idle_timeout:g} s (idle_timeout)")


class Closable(Protocol):
    """Something that can be ended in less than two seconds."""

    def close_quickly(self) -> None: ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_installed = False


def close_at_exit(thing: Closable) -> None:
    """Close ``thing`` when the interpreter exits or is sent SIGTERM. A SIGTERM handler of the user's is left alone."""
    global _installed
    _open.add(thing)
    if _installed:
        return
    _installed = True
    atexit.register(_close_all)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_terminate)


def forget(thing: Closable) -> None:
    """It has been closed; nothing is to be done at exit."""
    _open.discard(thing)


def _close_all() -> None:
    for thing in list(_open):
        try:
            thing.close_quickly()
        except Exception:
            log.exception("while closing at exit")


def _on_terminate(number: int, frame: object) -> None:
    _close_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
