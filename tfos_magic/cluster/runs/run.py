"""A run as a handle: where it is, how it went, what came back, and its end."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from tfos_magic.cluster.runs.execution import Execution
from tfos_magic.cluster.runs.request import RETURNED, Observer, Printer, RunRequest, observing
from tfos_magic.cluster.runs.results import RunResult, quietly
from tfos_magic.cluster.runs.run_queue import RunQueue
from tfos_magic.cluster.runs.state import RunPhase, RunState
from tfos_magic.cluster.startup import Waits, await_end, heard_by, heard_somewhere
from tfos_magic.errors import RunInterrupted
from tfos_magic.transport.notifier import Notifier

if TYPE_CHECKING:
    import pandas

STOP_SECONDS = 10.0
SECONDS_BETWEEN = 0.25
CALLBACK_SECONDS = 5.0


class Run(Observer):
    """What ``cluster.submit`` and ``%%tfos_train --detach`` give: a run that goes on beside what its caller does.

    ``run.result["model"]``, or ``run["model"]`` for short, is a name that was asked back, once the run has ended; what
    a function returned is ``run.returned``. ``await run`` waits as :meth:`wait` does. The run ends with its process.
    One that ``waits`` is shown as queued until it begins.
    """

    def __init__(
        self, execution: Execution, queue: RunQueue[Run], observer: Observer | None = None, *, waits: bool = False
    ) -> None:
        self._execution, self._queue, self.observer = execution, queue, observing(observer or Printer())
        self._callbacks: list[Callable[[Run], object]] = []
        self._news = Notifier(self._tell, SECONDS_BETWEEN)
        self._muted = self._opened = self._asked = self._waited = False
        self._thread = self._waiting = 0
        self._end: Future[dict[str, Any]] = Future()
        if waits or queue.runs:
            self.state.queue()
        queue.join(self)
        self.state.ahead = queue.ahead(self)

    def start(self) -> Run:
        """Go on in a thread of its own, in this one's context: what is shown finds the cell it belongs to by that."""
        self._open()
        work = copy_context().run
        threading.Thread(target=work, args=(self._work,), name="tfos-run", daemon=True).start()
        return self

    def execute(self) -> dict[str, Any]:
        """Go on in the caller's thread to the end, and give what :meth:`wait` gives. An interrupt ends the run."""
        self._open()
        self._thread = threading.get_ident()
        try:
            try:
                with heard_by(self._await):
                    values = self._execution.execute(self, self._await_turn)
            finally:
                self._close()
        except BaseException as error:
            self._waited = self._waiting > 0
            self._end.set_exception(error)
            raise
        else:
            self._end.set_result(values)
            return values
        finally:
            self._news.finish(CALLBACK_SECONDS)

    def __repr__(self) -> str:
        return f"<{self.name}: {self._card()['text/plain']}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """A line while the run goes on, for what draws it may stand above; in the end the card."""
        return {**(self._card() if self.done else {}), "text/plain": repr(self)}

    def _card(self) -> dict[str, str]:
        bundle: dict[str, str] = resolve_name("tfos_magic.notebook.views.card:card_bundle")(self.state)
        return bundle

    def __getitem__(self, name: str) -> Any:
        """A name that was asked back, once the run has ended, well or not."""
        return self.result[name]

    def __await__(self) -> Generator[Any, None, Any]:
        """As :meth:`wait`, but a run that was stopped raises :class:`RunStopped`: it is no interrupt of the loop."""
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        return _outcome(await asyncio.shield(asyncio.wrap_future(quietly(self._end))))

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.state.name

    @property
    def run_id(self) -> str:
        """What tells the run from all others."""
        return self._execution.run_id

    @property
    def request(self) -> RunRequest:
        """What the run was asked to do."""
        return self._execution.request

    @property
    def state(self) -> RunState:
        """What is known of the run; changed by its own thread alone."""
        return self._execution.state

    @property
    def phase(self) -> RunPhase:
        """Where the run is: it compares with strings, as in ``run.phase == "done"``."""
        return self.state.phase

    @property
    def done(self) -> bool:
        """Whether the run has ended, well or not."""
        return self._end.done()

    @property
    def history(self) -> pandas.DataFrame:
        """The metrics so far, a row for each epoch of each ``fit``: both as counted from 0, and values by name."""
        import pandas

        rows = [
            {"fit": fit, "epoch": epoch, **metrics}
            for fit, logs in self.state.fits.items()
            for epoch, metrics in logs.items()
        ]
        return pandas.DataFrame(rows, columns=None if rows else ["fit", "epoch"])

    @property
    def runs(self) -> list[Run]:
        """Itself: what waits for the workers has runs, a map one for each item."""
        return [self]

    @property
    def busy(self) -> set[int]:
        """The workers that have it, or are to have it; one that has ended and reads what came back leaves them."""
        return set() if self.phase.ended else {worker.rank for worker in self.state.workers}

    @property
    def result(self) -> RunResult:
        """The names that came back. Looking into it waits for the end."""
        return RunResult(self.name, self._end)

    @property
    def returned(self) -> Any:
        """What the function returned that was run, once it has."""
        return self.wait()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end and give the names asked back, or what the function returned that was run.

        Raises what ended the run, and TimeoutError after ``timeout`` seconds. An interrupt ends the wait, not the run.
        """
        self._waiting += 1
        try:
            return _outcome(self._end.result(timeout))
        except TimeoutError:
            if self.done:
                raise
        finally:
            self._waiting -= 1
        raise TimeoutError(f"{self.name} has not ended within {timeout:g} s; it is still running.")

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End the run at its next step, and wait for that; where ``timeout`` seconds are not enough, end its workers.

        The cluster stays for the next run, unless it is still being started. In a callback of :meth:`on_change` it asks
        for the end, and does not wait.
        """
        if threading.get_ident() in (self._thread, self._news.ident):
            if not self._asked:
                self.ask_to_stop()
            return
        for _ in range(2):
            if self.done:
                return
            self.ask_to_stop()
            self._await_end(timeout)
        if not self.done:
            raise TimeoutError(
                f"{self.name} did not end within {2 * timeout:g} s: %tfos stop --force, or cluster.stop(force=True)."
            )

    def ask_to_stop(self) -> None:
        """Ask the run to end at its next step, and when asked again at once, without waiting for that."""
        self._asked = True
        self._execution.stop()

    def on_change(self, callback: Callable[[Run], object]) -> Callable[[], None]:
        """Call ``callback(run)`` as the run goes on, at most four times a second, and when it has ended.

        The calls come from a thread of their own, so that a slow one holds nothing up; where the run has ended already
        there is one, at once. A callback that raises is logged and not called again. Gives a function that ends the
        calls.
        """
        self._callbacks.append(callback)
        if self.done:
            self._tell()
        return lambda: self._drop(callback)

    def mute(self) -> None:
        """Show nothing more: the process is about to end."""
        self._muted = True

    def update(self, state: RunState) -> None:
        if self._muted:
            return
        self.observer.update(state)
        if self._callbacks:
            self._news.soon()

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        if not self._muted:
            self.observer.output(text, stream, rank)

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        if not self._muted:
            self.observer.show(data, metadata, rank)

    def _work(self) -> None:
        """Execute, and tell what ends the run, unless that is raised where somebody waits for it."""
        try:
            self.execute()
        except RunInterrupted:
            pass
        except BaseException as error:
            if not (self._muted or self._waited):
                print(f"{type(error).__name__}: {error}", file=sys.stderr)

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            with self._queue.left_on_error(self):
                self.observer.open(self.state)

    def _close(self) -> None:
        self._queue.leave(self)
        if not self._muted:
            self.observer.close(self.state)

    def _await_turn(self, meanwhile: Callable[[], None]) -> None:
        def look() -> None:
            if (ahead := self._queue.ahead(self)) != self.state.ahead:
                self.state.ahead = ahead
                self.update(self.state)
            meanwhile()

        self._queue.await_turn(self, look)

    def _await(self, what: str, until: float) -> None:
        self.state.wait_for(what, until)
        self.update(self.state)

    def _await_end(self, seconds: float) -> None:
        with heard_somewhere(Waits()):
            await_end(self._end, seconds, f"{self.name} to end")

    def _tell(self) -> None:
        for callback in list(self._callbacks):
            try:
                callback(self)
            except Exception:
                logging.getLogger(__name__).exception(
                    "A callback on changes of %s failed; it is not called again.", self.name
                )
                self._drop(callback)

    def _drop(self, callback: Callable[[Run], object]) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)


def _outcome(values: dict[str, Any]) -> Any:
    return values.get(RETURNED, values)


def end_runs(queue: RunQueue[Run], timeout: float = STOP_SECONDS) -> None:
    """End all runs that have the workers or wait for them, the newest first: none may begin as those before it end."""
    for run in reversed(queue.runs):
        with suppress(TimeoutError):
            run.stop(timeout)
