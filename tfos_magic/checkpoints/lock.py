"""Who goes on in the folder of a run, so that nobody else does: a mark beside it with a time that is kept new.

Object stores have no locks, and those of file systems do not tell whose they are. A mark does not outlive its run by
long: that of a process of this host that has ended counts for nothing at once, others when their time is old.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from tfos_magic.errors import ClusterError, UsageError
from tfos_magic.this_host import HostProcess, this_process

BEAT_SECONDS = 15.0
STALE_SECONDS = 60.0
"""Clocks of hosts are taken to differ by less than what lies between the two."""


class Marks(Protocol):
    """Where marks are kept, by the names of runs."""

    where: str

    def read_mark(self, run: str) -> bytes: ...

    def write_mark(self, run: str, data: bytes) -> None: ...

    def drop_mark(self, run: str) -> None: ...


@dataclass(frozen=True)
class Mark:
    """A :class:`~tfos_magic.this_host.HostProcess` that goes on in the folder of ``run``, ``since`` then; it was alive
    at ``beat`` (s since the epoch)."""

    run: str
    host: str
    machine: str
    pid: int
    begun: str
    since: float
    beat: float
    nonce: str

    @property
    def is_alive(self) -> bool:
        """Whether the run may still be under way."""
        if time.time() - self.beat > STALE_SECONDS:
            return False
        return not HostProcess(self.host, self.machine, self.pid, self.begun).is_gone


def own_mark(run: str) -> Mark:
    """A mark of this process."""
    process, now = this_process(), time.time()
    return Mark(run, process.host, process.machine, process.pid, process.begun, now, now, secrets.token_hex(8))


def read(marks: Marks, run: str) -> Mark | None:
    """The mark of ``run``; None where there is none that can be read."""
    try:
        return Mark(**json.loads(marks.read_mark(run)))
    except (ValueError, TypeError):
        return None


def refuse_alive(marks: Marks, run: str) -> None:
    """Raise :class:`UsageError` that tells who goes on in the folder of ``run``, if somebody does."""
    mark = read(marks, run)
    if mark is None or not mark.is_alive:
        return
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(mark.since))
    raise UsageError(
        f"The run {run} in {marks.where} is still running, in process {mark.pid} on {mark.host} since {since}: "
        "--resume would train it twice. Wait for its end or stop it first, or leave out --resume to start another run; "
        f"a run whose host was lost can be resumed {STALE_SECONDS:.0f} s later."
    )


class RunLock:
    """Holds the mark of a run from its making until :meth:`release`. Raises :class:`ClusterError` where it cannot be
    written. ``notify`` is told, from a thread, when another process has taken the run over."""

    def __init__(self, marks: Marks, run: str, notify: Callable[[str], None]) -> None:
        self._marks, self._run, self._notify = marks, run, notify
        self._mark = own_mark(run)
        self._ended = threading.Event()
        self._beat()
        self._thread = threading.Thread(target=self._keep_new, name="tfos-checkpoints-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let others go on in the folder. Releasing twice is harmless."""
        self._ended.set()
        self._thread.join(5)
        with suppress(ClusterError):  # it gets old by itself
            if self._is_own():
                self._marks.drop_mark(self._run)

    def _keep_new(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(ClusterError):  # who writes checkpoints there says so
                if not self._is_own(missing=True):
                    self._notify(
                        f"Another process has resumed the run {self._run} in {self._marks.where}: its checkpoints and "
                        "those of this one get mixed. Stop one of the two."
                    )
                    return
                self._beat()

    def _beat(self) -> None:
        self._mark = replace(self._mark, beat=time.time())
        self._marks.write_mark(self._run, json.dumps(asdict(self._mark)).encode())

    def _is_own(self, *, missing: bool = False) -> bool:
        mark = read(self._marks, self._run)
        return missing if mark is None else mark.nonce == self._mark.nonce
