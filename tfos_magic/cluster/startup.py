"""What a cluster that is being started waits for, told to the run, or whoever else, that asked for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Condition

Hearer = Callable[[str, float], object]
"""Is given what is waited for, and until when at most, in seconds of :func:`time.monotonic`."""
CHECK_SECONDS = 0.25
_hearer: ContextVar[Hearer | None] = ContextVar("tfos-startup", default=None)


@contextmanager
def heard_by(hearer: Hearer) -> Iterator[None]:
    """Let ``hearer`` be told, in this thread, what is waited for meanwhile."""
    token = _hearer.set(hearer)
    try:
        yield
    finally:
        _hearer.reset(token)


def tell(what: str, until: float = math.inf) -> None:
    """Tell what is waited for from now on, and until when."""
    if hearer := _hearer.get():
        hearer(what, until)


def wait_until(changed: Condition, is_over: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Wait until ``is_over()``, at most so many ``seconds``, and tell ``what()`` is waited for. Both are asked with
    ``changed`` held, and it is told without, for whoever hears may take long."""
    deadline = time.monotonic() + seconds
    while True:
        with changed:
            if is_over() or time.monotonic() >= deadline:
                return
            changed.wait(CHECK_SECONDS)
            text = what()
        tell(text, deadline)
