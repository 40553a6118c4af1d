"""A run that goes on while the notebook does something else: a handle, and the thread behind it."""

from __future__ import annotations

import sys
import threading
from contextvars import copy_context
from typing import Any

from tfos_magic.cluster.runs.request import Observer
from tfos_magic.cluster.runs.run import Run
from tfos_magic.errors import RunInterrupted, UsageError
from tfos_magic.notebook.views.picture import summary
from tfos_magic.notebook.views.view import View

STOP_SECONDS = 10.0


class DetachedRun(Observer):
    """What ``%%tfos_train --detach`` gives: ``run.wait()``, ``run.stop()``, and ``run["model"]`` for what comes back.

    What the run prints and draws goes to the cell that started it. It ends with the kernel.
    """

    def __init__(self, run: Run, view: View) -> None:
        self._run, self._view = run, view
        self._values: dict[str, Any] = {}
        self._error: BaseException | None = None
        self._muted = False
        self._ended = threading.Event()
        view.detach(run.stop)
        view.open(run.state)
        # Output finds the cell that it belongs to by the context, which a thread does not inherit.
        work = copy_context().run
        self._thread = threading.Thread(target=work, args=(self._work,), name="tfos-run", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<{self._run.state.name}: {summary(self._run.state)}>"

    def __getitem__(self, name: str) -> Any:
        """A name that was asked back with -o, once the run has ended, well or not."""
        self._ended.wait()
        if name in self._values:
            return self._values[name]
        values = self.wait()
        raise UsageError(f"{name!r} was not asked back: add it to -o. There is {', '.join(values) or 'nothing'}.")

    @property
    def state(self) -> Any:
        """What is known of the run; changed by its own thread."""
        return self._run.state

    @property
    def done(self) -> bool:
        """Whether the run has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end and give the names asked back; raises what ended the run, and TimeoutError, in seconds.

        An interrupt ends the wait, not the run.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self._run.state.name} has not ended within {timeout:g} s; it goes on.")
        if self._error is not None:
            raise self._error
        return self._values

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End the run at its next step, and wait for that; where ``timeout`` seconds are not enough, end its workers.

        A cluster that is being started is waited for. The cluster stays for the next cell.
        """
        for _ in range(2):
            if self._ended.is_set():
                return
            self._run.stop()
            self._ended.wait(timeout)
        if not self._ended.is_set():
            raise TimeoutError(f"{self._run.state.name} did not end within {2 * timeout:g} s: %tfos stop --force does.")

    def again(self) -> None:
        """Show the run once more, under the cell that calls this."""
        self._view.again(self._run.state)

    def mute(self) -> None:
        """Show nothing more: the kernel is about to end."""
        self._muted = True

    def update(self, state: Any) -> None:
        if not self._muted:
            self._view.update(state)

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        if not self._muted:
            self._view.output(text, stream, rank)

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        if not self._muted:
            self._view.show(data, metadata, rank)

    def _work(self) -> None:
        try:
            self._values = self._run.execute(self)
        except BaseException as error:  # raised again where the run is waited for
            self._error, self._values = error, getattr(error, "values", {})
            if not isinstance(error, RunInterrupted) and not self._muted:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            if not self._muted:
                self._view.close(self._run.state)
            self._ended.set()
