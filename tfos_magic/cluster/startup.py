"""What is waited for, above all while a cluster starts, told to the run, or whoever else, that asked for it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from threading import Condition
from typing import Any, TypeVar

from tfos_magic.background import begun

Hearer = Callable[[str, float], object]
"""Is given what is waited for, and until when at most, in seconds of :func:`time.monotonic`."""
Value = TypeVar("Value")
CHECK_SECONDS = 0.25
SAY_SECONDS = 3.0
"""A wait that is shorter is not worth a line of text."""
_hearer: ContextVar[Hearer | None] = ContextVar("tfos-startup", default=None)


@contextmanager
def heard_by(hearer: Hearer) -> Iterator[None]:
    """Let ``hearer`` be told, in this thread, what is waited for meanwhile."""
    token = _hearer.set(hearer)
    try:
        yield
    finally:
        _hearer.reset(token)


def shown_by(draw: Callable[[], object], note: Hearer) -> AbstractContextManager[None]:
    """Let ``note`` be told, in this thread, what is waited for, and ``draw`` show it, which may raise."""

    def hear(what: str, until: float) -> None:
        note(what, until)
        draw()

    return heard_by(hear)


class Waits:
    """A hearer that prints, from three seconds on, what is waited for: once for each wait, numbers aside.

    It prints to ``sys.stdout``, or to ``sys.stderr`` with ``aside``.
    """

    def __init__(self, *, aside: bool = False) -> None:
        self._aside, self._begun, self._said = aside, time.monotonic(), ""

    def __call__(self, what: str, until: float = math.inf) -> None:
        now, kind = time.monotonic(), what.partition(":")[0]
        if kind == self._said or now - self._begun < SAY_SECONDS:
            return
        self._said = kind
        left = f" (at most {until - now:.0f} s more)" if now < until < math.inf else ""
        print(f"waiting for {what}{left}", file=sys.stderr if self._aside else sys.stdout, flush=True)


def heard_somewhere(hearer: Hearer) -> AbstractContextManager[None]:
    """As :func:`heard_by`, where nobody hears yet."""
    return nullcontext() if _hearer.get() else heard_by(hearer)


@contextmanager
def within(deadline: float) -> Iterator[None]:
    """Let what is waited for in this thread be told with this ``deadline``, of which each wait is a part."""
    hearer = _hearer.get()
    with heard_by(lambda what, _: hearer(what, deadline)) if hearer else nullcontext():
        yield


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


def await_end(future: Future[Any], seconds: float, what: str) -> None:
    """Wait until ``future`` is done, at most so many ``seconds``, and tell ``what`` is waited for."""
    until = time.monotonic() + seconds
    while not wait([future], min(CHECK_SECONDS, max(0.0, until - time.monotonic()))).done and time.monotonic() < until:
        tell(what, until)


def tell_while(what: str, until: float, work: Callable[[], Value], check: Callable[[], str] = lambda: "") -> Value:
    """What ``work()`` gives, in a thread that an interrupt leaves, and what ``check`` raises; tell meanwhile that
    ``what`` is waited for, or what ``check`` says."""
    made = begun(work, "tfos-told")
    while not wait([made], CHECK_SECONDS).done:
        tell(check() or what, until)
    return made.result()
