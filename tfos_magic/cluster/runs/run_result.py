"""What a run brings back, and its end as those see it who wait for it in an event loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from tfos_magic.errors import RunInterrupted, RunStopped, UsageError


class RunResult(Mapping[str, Any]):
    """The names that a run brought back, also where it failed or was stopped; looking into it waits for the end."""

    def __init__(self, name: str, end: Future[dict[str, Any]]) -> None:
        self._name, self._end = name, end

    def __getitem__(self, name: str) -> Any:
        values = self._values()
        if name in values:
            return values[name]
        there = ", ".join(self._end.result()) or "nothing"  # raises what ended the run, if anything did
        raise UsageError(f"{name!r} was not asked back: add it to -o, or to outputs. There is {there}.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return f"<{self._name}: {', '.join(self._values()) if self._end.done() else 'under way'}>"

    def _values(self) -> dict[str, Any]:
        try:
            return self._end.result()
        except BaseException as error:
            if not self._end.done():  # the wait was interrupted
                raise
            return dict(getattr(error, "values", {}))


def quietly(end: Future[dict[str, Any]]) -> Future[dict[str, Any]]:
    """The same end with an error of its own for a run that was stopped."""
    made: Future[dict[str, Any]] = Future()

    def pass_on(ended: Future[dict[str, Any]]) -> None:
        error = ended.exception()
        if error is None:
            made.set_result(ended.result())
        else:
            made.set_exception(RunStopped(str(error)) if isinstance(error, RunInterrupted) else error)

    end.add_done_callback(pass_on)
    return made
