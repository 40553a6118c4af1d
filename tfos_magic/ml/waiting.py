"""Waiting for runs in threads of Spark ML's, which no interrupt reaches."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from tfos_magic.cluster.shared import SHARED
from tfos_magic.errors import RunStopped, UsageError, WorkerError

SECONDS = 0.5
_TUNING = ("pyspark/ml/tuning.py", "pyspark/ml/classification.py")

Value = TypeVar("Value")


class Caller:
    """The call of Spark ML that waits for this thread, if there is one, as ``CrossValidator.fit`` does for its pool's.

    Spark's tuning trains in threads of a pool. An interrupt ends the call, in the main thread, and leaves the threads.
    """

    def __init__(self) -> None:
        self._of_pool = any(
            frame.f_code.co_name in ("singleTask", "trainSingleClass") for frame in _stack(sys._getframe())
        )
        self._waiting = [frame for frame in _all_frames() if frame.f_code.co_name == "_fit" and _is_tuning(frame)]

    @property
    def gone(self) -> bool:
        """Whether the call has ended while its thread goes on."""
        return self._of_pool and not {*map(id, self._waiting)}.intersection(map(id, _all_frames()))


_CALLERS: set[Caller] = set()


def _is_one_leaving() -> bool:
    return any(caller.gone for caller in list(_CALLERS))


SHARED.leaving.append(_is_one_leaving)


def wait_for(wait: Callable[[float], Value], stop: Callable[[], object]) -> Value:
    """What ``wait(seconds)`` gives, which raises TimeoutError until there is something; an interrupt calls ``stop``.

    Raises :class:`RunStopped` where Spark ML's call was interrupted that waits for this thread.
    """
    caller = Caller()
    _CALLERS.add(caller)
    try:
        return _awaited(caller, wait, stop)
    finally:
        _CALLERS.discard(caller)


def _awaited(caller: Caller, wait: Callable[[float], Value], stop: Callable[[], object]) -> Value:
    try:
        while not caller.gone:
            try:
                return wait(SECONDS)
            except TimeoutError:
                pass
    except KeyboardInterrupt as error:
        stop()
        if threading.current_thread() is threading.main_thread():
            raise
        raise RunStopped(str(error)) from None  # a pool loses a thread by what is no Exception
    except WorkerError as error:
        if error.kind != UsageError.__name__:
            error.cell_lines = error.brought = ""  # of a cell that is ours
            raise
        raise UsageError(error.args[0]) from None  # a refusal of ours, and no cell of the user's
    stop()
    raise RunStopped("The call that asked for the model was interrupted.")


def _all_frames() -> list[FrameType]:
    return [frame for top in sys._current_frames().values() for frame in _stack(top)]


def _stack(top: FrameType | None) -> list[FrameType]:
    frames = []
    while top is not None:
        frames.append(top)
        top = top.f_back
    return frames


def _is_tuning(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(_TUNING)
