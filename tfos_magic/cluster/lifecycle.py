"""Ending with the kernel: what runs at exit and at SIGTERM, quickly enough for Jupyter's patience."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import weakref
from typing import Any, Protocol

log = logging.getLogger("tfos_magic.cluster")


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
