"""Work in a thread that may be left to itself: one that waits for it can go."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Value = TypeVar("Value")


def begun(work: Callable[[], Value], name: str) -> Future[Value]:
    """What ``work()`` will give, or raise, in a daemon thread called ``name``."""
    made: Future[Value] = Future()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return made
